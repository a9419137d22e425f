//! Connecting, closing, waiting, and load.

use super::*;
use crate::transport::{ConnectError, Interrupt};

/// [PROV-31] [PROV-68] [PROV-69]
pub fn connect_to_nobody_answers_an_error(fixture: &dyn Fixture) {
    let domain = fixture.domain();
    let wrong = match domain.provider() {
        Provider::Sim => Address::Shm("/nowhere".into()),
        _ => Address::Sim(1),
    };
    assert!(matches!(
        domain.connect(&wrong, &params(fixture), CONNECT_TIMEOUT),
        Err(ConnectError::WrongAddress { .. })
    ));
    assert!(matches!(domain.listen(&wrong, &params(fixture)), Err(ConnectError::WrongAddress { .. })));

    let listener = domain.listen(&fixture.address(), &params(fixture)).unwrap();
    let address = listener.address().clone();
    assert!(domain.listen(&address, &params(fixture)).is_err(), "two listeners on {address}");
    drop(listener);
    let error =
        domain.connect(&address, &params(fixture), CONNECT_TIMEOUT).err().expect("nobody listens any more");
    assert!(error.to_string().contains(&address.to_string().replace("dafs+tcp://", "")), "{error}");
    // Its place is free again.
    let mut listener = domain.listen(&address, &params(fixture)).unwrap();
    let (_client, _server) = connect(&*domain, &mut *listener, &params(fixture));
}

/// [PROV-86]
pub fn listener_says_whether_it_has_more(fixture: &dyn Fixture) {
    let domain = fixture.domain();
    let mut listener = domain.listen(&fixture.address(), &params(fixture)).unwrap();
    assert!(!listener.has_more(), "nobody asked it yet");
    let pairs = [(); 3].map(|()| {
        let pair = connect(&*domain, &mut *listener, &params(fixture));
        assert!(listener.has_more(), "there may be another");
        pair
    });
    while listener.has_more() {
        assert!(listener.accept().unwrap().is_none());
    }
    drop(pairs);
}

/// [PROV-22] [PROV-49] [PROV-66]
pub fn close_is_seen_by_the_peer_after_what_was_flushed(fixture: &dyn Fixture) {
    for count in [0usize, 1, 10] {
        let mut pair = Pair::new(fixture);
        for index in 0..count {
            pair.server.endpoint.send_copy(&[index as u8], &pattern(index, 4000)).unwrap();
        }
        pair.server.endpoint.flush().unwrap();
        let begin = Instant::now();
        while pair.server.endpoint.wants_flush() {
            pair.client.pump();
            pair.server.endpoint.flush().unwrap();
            assert!(begin.elapsed() < HANG);
        }
        pair.server.endpoint.close();
        assert!(matches!(pair.server.endpoint.send_copy(b"h", b""), Err(PostError::Closed)));
        assert!(pair.server.endpoint.recv().is_err());
        while pair.client.end.is_none() {
            if !pair.client.pump() {
                pair.client.wait_a_little();
            }
            assert!(begin.elapsed() < HANG);
        }
        assert_eq!(pair.client.received.len(), count);
        for index in 0..count {
            let expected = Arrival::Message(vec![index as u8], pattern(index, 4000));
            assert_eq!(pair.client.received.pop_front(), Some(expected));
        }
        assert!(matches!(pair.client.end, Some(TransportError::Closed)), "{:?}", pair.client.end);
        assert!(matches!(pair.client.endpoint.send_copy(b"h", b""), Err(PostError::Closed)));
        // Closing again, and the other end, changes nothing.
        pair.server.endpoint.close();
        pair.client.endpoint.close();
        assert!(pair.client.endpoint.recv().is_err());
    }
}

/// [PROV-22]
pub fn drop_of_an_endpoint_closes_it(fixture: &dyn Fixture) {
    let mut pair = Pair::new(fixture);
    let (client, server) = pair.another();
    drop(std::mem::replace(&mut pair.server, server));
    let mut abandoned = std::mem::replace(&mut pair.client, client);
    let begin = Instant::now();
    while abandoned.end.is_none() {
        if !abandoned.pump() {
            abandoned.wait_a_little();
        }
        assert!(begin.elapsed() < HANG);
    }
    assert!(matches!(abandoned.end, Some(TransportError::Closed)), "{:?}", abandoned.end);
    pair.assert_alive();
}

/// Posts writes and reads, flushed or not; returns how many are pending.
fn post_some(pair: &mut Pair, region: &Region, flush: bool) -> usize {
    let local = pair.server_memory(100_000);
    let mut pending = 0;
    for token in 0..8u64 {
        let posted = pair.server.post(
            token.is_multiple_of(2),
            token,
            [local.clone()].into_iter().collect(),
            region.range(),
        );
        pending += usize::from(matches!(posted, Ok(Posted::Pending)));
    }
    if flush {
        pair.server.flush();
    }
    pending
}

fn assert_completed_once(pair: &mut Pair, pending: usize) {
    let mut tokens: Vec<u64> =
        pair.server.completions.drain(..).map(|completion| completion.token.0).collect();
    tokens.sort_unstable();
    let count = tokens.len();
    tokens.dedup();
    assert_eq!((tokens.len(), count), (pending, pending));
    assert!(pair.server.endpoint.poll_completion().is_none());
}

/// [PROV-14] [PROV-23]
pub fn close_completes_what_was_posted_exactly_once(fixture: &dyn Fixture) {
    for flush in [false, true] {
        let mut pair = Pair::new(fixture);
        let region = pair.client_region(100_000);
        let pending = post_some(&mut pair, &region, flush);
        pair.server.endpoint.close();
        pair.until_server_completions(pending);
        assert_completed_once(&mut pair, pending);
        let local = pair.server_memory(100_000);
        let posted = pair.server.post(true, 9, [local].into_iter().collect(), region.range());
        assert!(matches!(posted, Err(PostError::Closed)), "{posted:?}");
    }
}

/// [PROV-14] [PROV-23]
pub fn peer_close_completes_what_was_posted_exactly_once(fixture: &dyn Fixture) {
    for flush in [false, true] {
        let mut pair = Pair::new(fixture);
        let region = pair.client_region(100_000);
        let pending = post_some(&mut pair, &region, flush);
        pair.client.endpoint.close();
        pair.until("the server to see the end", |pair| pair.server.end.is_some());
        pair.until_server_completions(pending);
        assert_completed_once(&mut pair, pending);
    }
}

/// [PROV-25]
pub fn wait_answers_after_its_timeout(fixture: &dyn Fixture) {
    let mut pair = Pair::new(fixture);
    for timeout_ms in [0, 1, 20] {
        pair.client.endpoint.wait(Some(Duration::from_millis(timeout_ms))).unwrap();
        assert!(pair.client.endpoint.recv().unwrap().is_none());
    }
    pair.assert_alive();
}

/// [PROV-87] Without a timeout: a wait that misses it lasts for ever.
pub fn wait_ends_when_another_thread_interrupts_it(fixture: &dyn Fixture) {
    let mut pair = Pair::new(fixture);
    let interrupt = Interrupt::new().unwrap();
    for _ in 0..3 {
        interrupt.raise();
        pair.client.endpoint.wait_or(None, Some(&interrupt)).unwrap();
        assert!(!interrupt.take(), "it is taken");
    }
    // On virtual time nobody sleeps.
    if !pair.client.endpoint.event_fds().is_empty() {
        for _ in 0..100 {
            std::thread::scope(|scope| {
                scope.spawn(|| interrupt.raise());
                pair.client.endpoint.wait_or(None, Some(&interrupt)).unwrap();
            });
            assert!(pair.client.endpoint.recv().unwrap().is_none());
        }
    }
    pair.assert_alive();
}

/// [PROV-24] [PROV-25] [PROV-67]
pub fn arm_misses_no_arrival(fixture: &dyn Fixture) {
    let mut pair = Pair::new(fixture);
    // What is here already refuses to arm.
    pair.client.endpoint.send_copy(b"h", b"").unwrap();
    pair.client.flush();
    pair.server.endpoint.wait(Some(HANG)).unwrap();
    let begin = Instant::now();
    while pair.server.endpoint.arm() {
        assert!(begin.elapsed() < HANG, "armed although a message is here");
        if is_sim(&pair) {
            pair.server.wait_a_little();
        }
    }
    pair.until("the message", |pair| pair.server.received.pop_front().is_some());
    arm_over_what_has_just_left(&mut pair);
    arm_over_a_completion(&mut pair);
    if is_sim(&pair) {
        arm_by_turns(&mut pair);
    } else {
        // Once a connection was told of an event, it is told of all.
        arm_against_a_thread(&mut pair, false);
        arm_against_a_thread(&mut pair, true);
    }
}

/// A side that was armed all the same is woken.
fn arm_over_what_has_just_left(pair: &mut Pair) {
    pair.client.endpoint.send_copy(b"h", b"").unwrap();
    pair.client.flush();
    if pair.server.endpoint.arm() && !is_sim(pair) {
        let mut sleeper = Sleeper::new(&*pair.server.endpoint);
        let begin = Instant::now();
        // A socket that is new to the poll says that it can be written to.
        while !sleeper.events.iter().any(mio::event::Event::is_readable) {
            assert!(begin.elapsed() < HANG, "armed over a message");
            sleeper.poll.poll(&mut sleeper.events, Some(HANG)).unwrap();
        }
    }
    pair.until("the message", |pair| pair.server.received.pop_front().is_some());
}

/// A completion that nobody has polled is something, too.
fn arm_over_a_completion(pair: &mut Pair) {
    let (region, local) = (pair.client_region(4096), pair.server_memory(4096));
    let posted = pair.server.post(false, 1, [local].into_iter().collect(), region.range());
    let begin = Instant::now();
    let mut is_over = posted.unwrap() == Posted::Done;
    while !is_over {
        pair.client.pump();
        pair.server.flush();
        assert!(pair.server.endpoint.recv().unwrap().is_none());
        let is_armed = pair.server.endpoint.arm();
        is_over = pair.server.endpoint.poll_completion().is_some();
        // Devices are asked for completions by who polls.
        let may_be_new = pair.server.capabilities().provider == Provider::Verbs;
        assert!(!(is_over && is_armed) || may_be_new, "armed over a completion");
        assert!(begin.elapsed() < HANG, "no completion");
    }
}

fn arm_by_turns(pair: &mut Pair) {
    for _ in 0..1000 {
        assert!(pair.server.endpoint.arm());
        pair.client.endpoint.send_copy(b"h", b"").unwrap();
        pair.client.flush();
        pair.server.endpoint.wait(None).unwrap();
        assert!(!pair.server.endpoint.arm());
        assert!(pair.server.endpoint.recv().unwrap().is_some());
    }
}

/// Ping-pong in which each side sleeps on its descriptors only: one lost wake-up hangs both. `tells`: as a loop that tells its endpoint
/// of the events.
fn arm_against_a_thread(pair: &mut Pair, tells: bool) {
    const ROUNDS: u32 = 3000;
    let (client, server) = (&mut pair.client, &mut pair.server);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut sleeper = Sleeper { tells, ..Sleeper::new(&*server.endpoint) };
            for round in 0..ROUNDS {
                sleeper.sleep_until_message(&mut *server.endpoint);
                // The answer comes at a different moment of the peer's way to sleep each time.
                for _ in 0..round * 7 % 600 {
                    std::hint::spin_loop();
                }
                server.endpoint.send_copy(b"pong", b"").unwrap();
                server.endpoint.flush().unwrap();
            }
        });
        let mut sleeper = Sleeper { tells, ..Sleeper::new(&*client.endpoint) };
        for _ in 0..ROUNDS {
            client.endpoint.send_copy(b"ping", b"").unwrap();
            client.endpoint.flush().unwrap();
            sleeper.sleep_until_message(&mut *client.endpoint);
        }
    });
}

/// An event loop with one endpoint.
struct Sleeper {
    poll: mio::Poll,
    events: mio::Events,
    tells: bool,
}

impl Sleeper {
    fn new(endpoint: &dyn Endpoint) -> Self {
        let poll = mio::Poll::new().unwrap();
        for (place, fd) in endpoint.event_fds().into_iter().enumerate() {
            let interest = mio::Interest::READABLE | mio::Interest::WRITABLE;
            poll.registry().register(&mut mio::unix::SourceFd(&fd), mio::Token(place), interest).unwrap();
        }
        Self { poll, events: mio::Events::with_capacity(8), tells: false }
    }

    fn sleep_until_message(&mut self, endpoint: &mut dyn Endpoint) {
        let begin = Instant::now();
        loop {
            if endpoint.recv().unwrap().is_some() {
                return;
            }
            if !endpoint.arm() {
                continue;
            }
            self.poll.poll(&mut self.events, Some(HANG)).unwrap();
            assert!(begin.elapsed() < HANG, "slept through an arrival");
            for event in self.events.iter().filter(|_| self.tells) {
                endpoint.on_event(event.token().0, event.is_read_closed() || event.is_error());
            }
        }
    }
}

/// [PROV-5] [PROV-12] [PROV-28] [PROV-56]: on one thread with virtual time, on two threads with real time.
pub fn two_sides_under_load_agree_on_every_byte(fixture: &dyn Fixture) {
    const REQUESTS: usize = 1500;
    let pair = Pair::new(fixture);
    let region = pair.client_region(64 * 1024);
    let window = usize::from(pair.client.capabilities().send_depth) / 2;
    let server = LoadServer {
        local: pair.server_memory(64 * 1024),
        remote: region.range(),
        answered: 0,
        writing: false,
    };
    let client = LoadClient { region, window, sent: 0, taken: 0 };
    if is_sim(&pair) {
        let (mut pair, mut client, mut server) = (pair, client, server);
        pair.until("the load", |pair| {
            server.step(&mut pair.server);
            client.step(&mut pair.client, REQUESTS);
            client.taken == REQUESTS
        });
        return;
    }
    let (mut client_side, mut server_side) = (pair.client, pair.server);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut server = server;
            while server.answered < REQUESTS {
                run_side(&mut server_side);
                server.step(&mut server_side);
                server_side.flush();
            }
            // The last answers may still be queued.
            while server_side.end.is_none() {
                run_side(&mut server_side);
            }
        });
        let mut client = client;
        while client.taken < REQUESTS {
            run_side(&mut client_side);
            client.step(&mut client_side, REQUESTS);
            client_side.flush();
        }
        client_side.endpoint.close();
    });
}

fn run_side(side: &mut Side) {
    if !side.pump() {
        side.wait_a_little();
    }
}

/// Sends requests with a payload drawn from their number; each answer names a length and a seed that the client's memory must then show.
struct LoadClient {
    region: Region,
    window: usize,
    sent: usize,
    taken: usize,
}

impl LoadClient {
    fn step(&mut self, side: &mut Side, requests: usize) {
        assert!(side.end.is_none(), "{:?}", side.end);
        while let Some(arrival) = side.received.pop_front() {
            let Arrival::Message(head, payload) = arrival else { panic!("nobody sends an immediate") };
            assert_eq!(head, self.taken.to_le_bytes());
            assert_eq!(payload, pattern(self.taken, self.taken * 61 % 5000));
            // The server writes again only after the next request.
            if self.taken + 1 == self.sent {
                let len = write_len(self.taken);
                let written = self.region.memory().span().slice(0, len).unwrap().to_vec();
                assert!(written == pattern(self.taken + 1, len), "{len} bytes of answer {}", self.taken);
            }
            self.taken += 1;
        }
        // Now and then one at a time, so that the memory is still.
        let window = if self.sent % 100 < 30 { 1 } else { self.window };
        while self.sent < requests && self.sent - self.taken < window {
            match side
                .endpoint
                .send_copy(&self.sent.to_le_bytes(), &pattern(self.sent, self.sent * 97 % 8192))
            {
                Ok(()) => self.sent += 1,
                Err(PostError::Full) => break,
                Err(error) => panic!("{error}"),
            }
        }
    }
}

fn write_len(request: usize) -> usize {
    request * 1237 % (64 * 1024)
}

/// Checks each request, writes the client's memory, and answers.
struct LoadServer {
    local: MemoryRef,
    remote: RemoteRange,
    answered: usize,
    /// The local memory is the provider's.
    writing: bool,
}

impl LoadServer {
    fn step(&mut self, side: &mut Side) {
        for completion in side.completions.drain(..) {
            completion.result.unwrap();
            self.writing = false;
        }
        while let Some(Arrival::Message(head, payload)) = side.received.front() {
            assert_eq!(*head, self.answered.to_le_bytes());
            assert_eq!(*payload, pattern(self.answered, self.answered * 97 % 8192));
            if self.writing {
                return;
            }
            // Room for the answer first: then it follows its write at once.
            let answer = pattern(self.answered, self.answered * 61 % 5000);
            let Ok(slot) = side.endpoint.reserve(answer.len()) else { return };
            let len = write_len(self.answered);
            let part = self.local.slice(0, len).unwrap();
            fill(&part, self.answered + 1);
            let range = self.remote.slice(0, len as u64).unwrap();
            match side.post(true, 1, [part].into_iter().collect(), range) {
                Ok(posted) => self.writing = posted == Posted::Pending,
                Err(PostError::Full) => return side.endpoint.cancel_send(slot),
                Err(error) => panic!("{error}"),
            }
            side.endpoint.slot_payload(&slot).write_from(0, &answer);
            side.endpoint.send(slot, &self.answered.to_le_bytes(), answer.len()).unwrap();
            self.answered += 1;
            side.received.pop_front();
        }
    }
}
