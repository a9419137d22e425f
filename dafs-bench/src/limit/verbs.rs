//! Bare RDMA over the same device: a message and its answer, or a stream of writes or reads. What perftest measures.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::{Context, anyhow};
use dafs_proto::transport::verbs::raw::{RawEnd, RawListener, RawSetup};

use crate::clock::{Laps, nanoseconds};
use crate::limit::Stage;
use crate::load::{Load, Work};
use crate::record::Op;
use crate::stats::Samples;

/// Sizes of a request and a reply without data, bytes: a message header, a head, what the transport puts before.
const REQUEST_BYTES: usize = 88;
const REPLY_BYTES: usize = 56;

/// Which way data goes.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Way {
    Write,
    Read,
}

/// One request after the other.
pub(crate) fn request_response(
    load: &Load,
    stage: &Stage<'_>,
    spin: bool,
    samples: &mut Samples,
) -> anyhow::Result<Work> {
    let (request, reply) = match load.op {
        Op::Write => (REQUEST_BYTES + load.bytes, REPLY_BYTES),
        Op::Read | Op::Ping | Op::Copy => (REQUEST_BYTES, REPLY_BYTES + load.bytes),
    };
    let setup = RawSetup { message_size_max: request.max(reply), data_size: 0, depth: 4, sleeps: !spin };
    let stop = AtomicBool::new(false);
    let serve = |mut end: RawEnd| {
        while end.receive(&stop)? {
            end.send(reply)?;
        }
        Ok(())
    };
    with_pair(stage, &setup, &stop, serve, |mut end| {
        let mut round_trip = || {
            end.send(request)?;
            end.receive(&AtomicBool::new(false))
        };
        // The first ones wait for the other thread.
        for _ in 0..WARM_UP {
            round_trip()?;
        }
        let mut ops = 0;
        let deadline = stage.budget.start();
        let mut laps = Laps::start();
        loop {
            round_trip()?;
            let (ns, now) = laps.lap();
            samples.record(ns);
            ops += 1;
            if deadline.over(now, ops) {
                return Ok(Work { ops, elapsed: now - deadline.start });
            }
        }
    })
}

/// As many writes or reads on their way as the load's queue depth, each from or to a place of its own. The other end does nothing.
pub(crate) fn stream(
    load: &Load,
    stage: &Stage<'_>,
    way: Way,
    samples: &mut Samples,
) -> anyhow::Result<Work> {
    let depth = load.queue_depth.max(1);
    let bytes = load.bytes.max(1);
    let setup = RawSetup {
        message_size_max: 1,
        data_size: depth * bytes,
        depth: u32::try_from(depth).unwrap_or(u32::MAX),
        sleeps: true,
    };
    let stop = AtomicBool::new(false);
    let serve = |mut end: RawEnd| end.receive(&stop).map(drop);
    with_pair(stage, &setup, &stop, serve, |mut end| {
        let post = |end: &mut RawEnd, place: usize| match way {
            Way::Write => end.write(place * bytes, bytes),
            Way::Read => end.read(place * bytes, bytes),
        };
        let deadline = stage.budget.start();
        let mut on_their_way = VecDeque::with_capacity(depth);
        for place in 0..depth {
            post(&mut end, place)?;
            on_their_way.push_back((place, Instant::now()));
        }
        let (mut ops, mut now) = (0, deadline.start);
        while !on_their_way.is_empty() {
            // They end in the order of posting.
            for _ in 0..end.wait_done()? {
                let Some((place, start)) = on_their_way.pop_front() else { break };
                now = Instant::now();
                samples.record(nanoseconds(start, now));
                ops += 1;
                if !deadline.over(now, ops) {
                    post(&mut end, place)?;
                    on_their_way.push_back((place, now));
                }
            }
        }
        Ok(Work { ops, elapsed: now - deadline.start })
    })
}

const WARM_UP: u32 = 20;

/// Connects two ends, and runs each in a thread.
fn with_pair(
    stage: &Stage<'_>,
    setup: &RawSetup,
    stop: &AtomicBool,
    serve: impl FnOnce(RawEnd) -> std::io::Result<()> + Send,
    ask: impl FnOnce(RawEnd) -> std::io::Result<Work>,
) -> anyhow::Result<Work> {
    let ip = stage.verbs.context("no RDMA device was named")?;
    let listener = RawListener::bind(SocketAddr::new(ip, 0)).with_context(|| format!("RDMA on {ip}"))?;
    let to = listener.address();
    std::thread::scope(|scope| {
        let server = scope.spawn(move || {
            stage.pins.be_server();
            serve(listener.accept(setup)?)
        });
        stage.pins.be_client();
        let asked = RawEnd::connect(to, setup).and_then(ask);
        stop.store(true, Ordering::Relaxed);
        let served = server.join().map_err(|_| anyhow!("the bare RDMA server panicked"))?;
        // Where both failed, the server knows why: the client only saw it go.
        served.and(asked).with_context(|| format!("bare RDMA over {ip} failed"))
    })
}
