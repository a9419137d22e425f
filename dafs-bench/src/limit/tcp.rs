//! Requests and responses over loopback TCP: one at a time, or many in flight.

use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use socket2::{Domain, SockRef, Socket, Type};

use crate::clock::Laps;
use crate::limit::Stage;
use crate::load::{Budget, Load, Work};
use crate::record::Op;
use crate::stats::Samples;

/// Size of a request without data.
const REQUEST_BYTES: usize = 80;
/// Size of a reply without data.
const REPLY_BYTES: usize = 64;
/// Socket buffer sizes tried; `None` is the system's default, which grows by itself.
const SOCKET_BUFFERS: [Option<usize>; 3] = [None, Some(128 << 10), Some(256 << 10)];
/// Messages below this fit any socket buffer, so there is nothing to choose.
const CHOOSE_FROM_BYTES: usize = 16 << 10;

/// Whether several messages share a system call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Coalescing {
    /// One receive takes many messages, one send carries many.
    Yes,
    /// One receive and one send for each message, at both ends.
    No,
}

/// One request after the other; blocking, or spinning at both ends.
pub(crate) fn request_response(
    load: &Load,
    stage: &Stage<'_>,
    spin: bool,
    samples: &mut Samples,
) -> anyhow::Result<Work> {
    let sizes = Sizes::of(load);
    best_buffer(sizes, stage, samples, |buffer, budget, samples| {
        let (client, server) = connected_pair(buffer, spin)?;
        let serve = move || serve_each(server, sizes);
        let ask = |mut client: Connection| {
            let (request, mut reply) = (vec![1; sizes.request], vec![0; sizes.reply]);
            let mut ops = 0;
            let deadline = budget.start();
            let mut laps = Laps::start();
            loop {
                client.send_all(&request)?;
                client.receive_exact(&mut reply)?;
                let (ns, now) = laps.lap();
                samples.record(ns);
                ops += 1;
                if deadline.over(now, ops) {
                    return Ok(Work { ops, elapsed: now - deadline.start });
                }
            }
        };
        run_pair(stage, client, serve, ask)
    })
}

/// As many requests in flight as the load's queue depth.
pub(crate) fn stream(
    load: &Load,
    stage: &Stage<'_>,
    coalescing: Coalescing,
    samples: &mut Samples,
) -> anyhow::Result<Work> {
    let sizes = Sizes::of(load);
    let depth = load.queue_depth.max(1);
    let run = |buffer, budget, spin| {
        let (client, server) = connected_pair(buffer, spin)?;
        match coalescing {
            Coalescing::Yes => run_pair(
                stage,
                client,
                move || serve_batches(server, sizes, depth),
                |client| ask_batches(client, sizes, depth, budget),
            ),
            Coalescing::No => run_pair(
                stage,
                client,
                move || serve_each(server, sizes),
                |client| ask_each(client, sizes, depth, budget),
            ),
        }
    };
    // By whichever way of waiting is faster, each measured for half of the time: what stands beside it may spin, too.
    let ways: &[bool] = if coalescing == Coalescing::Yes { &[false, true] } else { &[false] };
    let part = u32::try_from(ways.len()).unwrap_or(1);
    let half = Stage { budget: Budget { duration: stage.budget.duration / part, ..stage.budget }, ..*stage };
    let mut best: Option<Work> = None;
    for &spin in ways {
        let work = best_buffer(sizes, &half, samples, |buffer, budget, _| run(buffer, budget, spin))?;
        if best.is_none_or(|best| work.ops_per_s() > best.ops_per_s()) {
            best = Some(work);
        }
    }
    best.context("a way to wait was measured")
}

/// Sizes of whole messages.
#[derive(Debug, Clone, Copy)]
struct Sizes {
    request: usize,
    reply: usize,
}

impl Sizes {
    fn of(load: &Load) -> Self {
        match load.op {
            Op::Write => Self { request: REQUEST_BYTES + load.bytes, reply: REPLY_BYTES },
            Op::Read | Op::Ping | Op::Copy => {
                Self { request: REQUEST_BYTES, reply: REPLY_BYTES + load.bytes }
            }
        }
    }
}

/// Tries each socket buffer size for a part of the budget, then measures with the best.
fn best_buffer(
    sizes: Sizes,
    stage: &Stage<'_>,
    samples: &mut Samples,
    mut run: impl FnMut(Option<usize>, Budget, &mut Samples) -> anyhow::Result<Work>,
) -> anyhow::Result<Work> {
    let mut best = (0.0, SOCKET_BUFFERS[0]);
    if sizes.request.max(sizes.reply) >= CHOOSE_FROM_BYTES {
        let trial = Budget { duration: stage.budget.duration / 4, ..stage.budget };
        for buffer in SOCKET_BUFFERS {
            let work = run(buffer, trial, samples)?;
            samples.count_done(work.ops);
            let rate = work.ops_per_s();
            if rate > best.0 {
                best = (rate, buffer);
            }
        }
    }
    samples.clear();
    let work = run(best.1, stage.budget, samples)?;
    samples.count_done(work.ops);
    Ok(work)
}

/// Runs the two ends on a thread each, pinned as the stage says.
fn run_pair(
    stage: &Stage<'_>,
    client: Connection,
    serve: impl FnOnce() -> io::Result<()> + Send,
    ask: impl FnOnce(Connection) -> io::Result<Work>,
) -> anyhow::Result<Work> {
    std::thread::scope(|scope| {
        let server = scope.spawn(|| {
            stage.pins.be_server();
            serve()
        });
        stage.pins.be_client();
        // Whatever comes of it, `ask` drops its connection, and the server ends on that.
        let asked = ask(client);
        let served = server.join();
        ensure!(served.is_ok(), "the raw TCP server panicked");
        asked.context("raw TCP over loopback failed")
    })
}

/// One blocking or spinning end of a connection.
#[derive(Debug)]
struct Connection {
    stream: TcpStream,
}

impl Connection {
    /// Some bytes, at least one; 0 once the peer has closed. A non-blocking socket is asked until it has some.
    #[inline]
    fn receive(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.stream.read(buffer) {
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                result => return result,
            }
        }
    }

    #[inline]
    fn receive_exact(&mut self, mut buffer: &mut [u8]) -> io::Result<()> {
        while !buffer.is_empty() {
            match self.receive(buffer)? {
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                count => buffer = &mut buffer[count..],
            }
        }
        Ok(())
    }

    #[inline]
    fn send_all(&mut self, buffer: &[u8]) -> io::Result<()> {
        self.send_vectored(&mut [IoSlice::new(buffer)])
    }

    fn send_vectored(&mut self, mut slices: &mut [IoSlice<'_>]) -> io::Result<()> {
        while !slices.is_empty() {
            match self.stream.write_vectored(slices) {
                Ok(count) => IoSlice::advance_slices(&mut slices, count),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

fn connected_pair(buffer: Option<usize>, spin: bool) -> io::Result<(Connection, Connection)> {
    let tune = |socket: SockRef<'_>| -> io::Result<()> {
        if let Some(bytes) = buffer {
            socket.set_send_buffer_size(bytes)?;
            socket.set_recv_buffer_size(bytes)?;
        }
        // As the provider does over loopback: the limit is to be the best that there is. Where it is refused it is slower.
        let _ = socket.set_tcp_congestion(b"reno");
        Ok(())
    };
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    // Buffers must be set before the handshake, for the window scale to follow; an accepted socket inherits them.
    tune(SockRef::from(&listener))?;
    let client = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    tune(SockRef::from(&client))?;
    let address: SocketAddr = listener.local_addr()?;
    client.connect(&address.into())?;
    let (server, _) = listener.accept()?;
    let client: TcpStream = client.into();
    for stream in [&client, &server] {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(spin)?;
    }
    Ok((Connection { stream: client }, Connection { stream: server }))
}

/// One receive and one send for each request.
fn serve_each(mut server: Connection, sizes: Sizes) -> io::Result<()> {
    let (mut request, reply) = (vec![0; sizes.request], vec![1; sizes.reply]);
    loop {
        server.receive_exact(&mut request)?;
        server.send_all(&reply)?;
    }
}

fn ask_each(mut client: Connection, sizes: Sizes, depth: usize, budget: Budget) -> io::Result<Work> {
    let request = vec![1; sizes.request];
    // A place for each operation in flight, as a client has it.
    let mut replies = vec![0; sizes.reply * depth];
    let mut places = (0..depth).cycle();
    let deadline = budget.start();
    for _ in 0..depth {
        client.send_all(&request)?;
    }
    let (mut ops, mut in_flight) = (0, depth);
    loop {
        let place = places.next().unwrap_or(0) * sizes.reply;
        client.receive_exact(&mut replies[place..place + sizes.reply])?;
        ops += 1;
        let now = Instant::now();
        if !deadline.over(now, ops) {
            client.send_all(&request)?;
            continue;
        }
        in_flight -= 1;
        if in_flight == 0 {
            return Ok(work(deadline.start, now, ops));
        }
    }
}

/// Takes as many requests as have come, and replies to them with one gathering send. All replies carry the same
/// payload: fetching it from anywhere is not the socket's work.
fn serve_batches(mut server: Connection, sizes: Sizes, depth: usize) -> io::Result<()> {
    let mut requests = Inbox::new(sizes.request, depth);
    let reply = vec![1; sizes.reply];
    let mut slices = Vec::with_capacity(depth);
    loop {
        let count = requests.receive(&mut server)?;
        slices.clear();
        slices.extend((0..count).map(|_| IoSlice::new(&reply)));
        server.send_vectored(&mut slices)?;
    }
}

fn ask_batches(mut client: Connection, sizes: Sizes, depth: usize, budget: Budget) -> io::Result<Work> {
    let mut replies = Inbox::new(sizes.reply, depth);
    let request = vec![1; sizes.request];
    let mut slices = Vec::with_capacity(depth);
    let (mut ops, mut in_flight, mut wanted) = (0, 0, depth);
    let deadline = budget.start();
    loop {
        slices.clear();
        slices.extend((0..wanted).map(|_| IoSlice::new(&request)));
        client.send_vectored(&mut slices)?;
        in_flight += wanted;
        let count = replies.receive(&mut client)?;
        in_flight -= count;
        ops += count as u64;
        let now = Instant::now();
        wanted = if deadline.over(now, ops) { 0 } else { count };
        if in_flight == 0 && wanted == 0 {
            return Ok(work(deadline.start, now, ops));
        }
    }
}

/// Messages of one size, received one behind the other into a circle of places, as data would land in the buffers
/// of the operations in flight.
#[derive(Debug)]
struct Inbox {
    memory: Vec<u8>,
    message: usize,
    position: usize,
}

impl Inbox {
    fn new(message: usize, depth: usize) -> Self {
        Self { memory: vec![0; message * depth], message, position: 0 }
    }

    /// Receives until at least one more message is whole; how many more are.
    fn receive(&mut self, from: &mut Connection) -> io::Result<usize> {
        let whole = self.position / self.message;
        loop {
            let count = from.receive(&mut self.memory[self.position..])?;
            if count == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            self.position += count;
            let more = self.position / self.message - whole;
            if self.position == self.memory.len() {
                self.position = 0;
            }
            if more > 0 {
                return Ok(more);
            }
        }
    }
}

fn work(start: Instant, end: Instant, ops: u64) -> Work {
    let elapsed: Duration = end - start;
    Work { ops, elapsed }
}
