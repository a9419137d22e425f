//! Ping-pong over shared memory: one 128-byte slot each way, its sequence number in the slot itself, so that one
//! cache-line transfer carries both the message and the news of it.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use crate::clock::Laps;
use crate::limit::Stage;
use crate::load::Work;
use crate::stats::Samples;
use crate::sys;

/// 128 bytes, of which the last word is the sequence number.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Slot {
    payload: [AtomicU64; 15],
    sequence: AtomicU64,
}

impl Slot {
    #[inline]
    fn send(&self, sequence: u64) {
        self.payload.iter().for_each(|word| word.store(sequence, Ordering::Relaxed));
        self.sequence.store(sequence, Ordering::Release);
    }

    #[inline]
    fn receive(&self) -> u64 {
        self.payload.iter().fold(0, |sum, word| sum | word.load(Ordering::Relaxed))
    }
}

#[derive(Debug, Default)]
struct Ring {
    request: Slot,
    reply: Slot,
    stop: AtomicBool,
}

/// Both ends spin.
pub(crate) fn spinning(stage: &Stage<'_>, samples: &mut Samples) -> anyhow::Result<Work> {
    let ring = Ring::default();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            stage.pins.be_server();
            let mut expected = 1;
            while !ring.stop.load(Ordering::Relaxed) {
                if ring.request.sequence.load(Ordering::Acquire) == expected {
                    ring.request.receive();
                    ring.reply.send(expected);
                    expected += 1;
                } else {
                    spin_loop();
                }
            }
        });
        stage.pins.be_client();
        let work = ping(stage, samples, |sequence| {
            ring.request.send(sequence);
            while ring.reply.sequence.load(Ordering::Acquire) != sequence {
                spin_loop();
            }
            ring.reply.receive();
        });
        ring.stop.store(true, Ordering::Relaxed);
        Ok(work)
    })
}

/// Both ends sleep on a futex until there is something for them.
pub(crate) fn sleeping(stage: &Stage<'_>, samples: &mut Samples) -> anyhow::Result<Work> {
    const STOP: u32 = u32::MAX;
    let (request, reply) = (AtomicU32::new(0), AtomicU32::new(0));
    let await_change = |word: &AtomicU32, seen: u32| {
        loop {
            match word.load(Ordering::Acquire) {
                same if same == seen => sys::futex_wait(word, seen),
                changed => return changed,
            }
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            stage.pins.be_server();
            let mut seen = 0;
            loop {
                seen = await_change(&request, seen);
                if seen == STOP {
                    return;
                }
                reply.store(seen, Ordering::Release);
                sys::futex_wake(&reply);
            }
        });
        stage.pins.be_client();
        let mut seen = 0;
        let work = ping(stage, samples, |_| {
            // Wraps long before STOP in any run of sane length: 2^31 round trips take hours.
            let next = (seen + 1) % (STOP / 2);
            request.store(next, Ordering::Release);
            sys::futex_wake(&request);
            seen = await_change(&reply, seen);
        });
        request.store(STOP, Ordering::Release);
        sys::futex_wake(&request);
        Ok(work)
    })
}

fn ping(stage: &Stage<'_>, samples: &mut Samples, mut round_trip: impl FnMut(u64)) -> Work {
    // The server thread may not run yet: the first round trips wait for it and are not counted.
    const WARM_UP: u64 = 100;
    (1..=WARM_UP).for_each(&mut round_trip);
    let mut ops = 0;
    let deadline = stage.budget.start();
    let mut laps = Laps::start();
    loop {
        ops += 1;
        round_trip(WARM_UP + ops);
        let (ns, now) = laps.lap();
        samples.record(ns);
        if deadline.over(now, ops) {
            return Work { ops, elapsed: now - deadline.start };
        }
    }
}
