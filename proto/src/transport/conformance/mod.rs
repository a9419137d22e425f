//! The suite that every provider must pass: one function for each rule of `spec/design/provider.md`, whose ids the tests cite.
//!
//! A provider's tests implement [`Fixture`] and instantiate [`conformance_suite!`](crate::conformance_suite). The tests drive both
//! sides from one thread where the rule allows, and know nothing of
//! a provider but its contract.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::missing_panics_doc,
    clippy::cast_possible_truncation,
    reason = "a suite of tests: it panics to fail, and its numbers are small"
)]

mod lifecycle;
pub(in crate::transport) mod mapped;
mod messages;
mod rdma;
mod regions;

pub use lifecycle::*;
pub use messages::*;
pub use rdma::*;
pub use regions::*;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{
    Access, Address, Capabilities, Completion, ConnectParams, Domain, Endpoint, HeapMemory, Listener,
    LocalSegments, MemoryRef, OpToken, PeerFault, PostError, Posted, PostedList, Provider, Received, Region,
    RemoteRange, TransportError, WaitPolicy,
};

/// How the suite gets at a provider.
pub trait Fixture {
    /// A protection domain of its own.
    fn domain(&self) -> Arc<dyn Domain>;

    /// An address that a domain can listen on and nobody uses.
    fn address(&self) -> Address;

    /// How the connections wait.
    fn wait(&self) -> WaitPolicy {
        WaitPolicy::Event
    }
}

/// Makes a `#[test]` of every function of the suite. The argument is an expression that makes a [`Fixture`]; `attribute: [ignore]`
/// before it gives every test that attribute.
#[macro_export]
macro_rules! conformance_suite {
    (@all $attributes:tt $fixture:expr) => {
        $crate::conformance_suite! { @each $attributes $fixture;
            capabilities_of_both_sides_agree
            capabilities_beyond_the_limits_become_the_limits
            messages_of_every_size_arrive_whole
            messages_arrive_in_order_of_send
            messages_beyond_those_expected_arrive_later
            messages_queued_together_leave_with_one_flush
            posts_outside_the_capabilities_are_invalid_and_send_nothing
            slots_may_be_sent_in_any_order_and_cancelled
            payload_stays_readable_until_recv_done
            peer_that_takes_nothing_fills_the_queue_and_recovers
            wait_after_full_ends_when_there_is_room

            rdma_lists_of_every_count_land
            rdma_writes_of_every_size_and_list_land
            rdma_reads_of_every_size_and_list_land
            rdma_write_is_visible_before_the_message_after_it
            rdma_write_with_immediate_arrives_after_its_data
            rdma_posts_outside_the_capabilities_are_invalid
            rdma_operations_complete_exactly_once
            rdma_queue_fills_and_recovers
            rdma_write_from_memory_that_may_fault_is_taken
            rdma_write_from_memory_that_is_gone_leaves_nothing_from_before
            remote_memory_is_the_peers_memory
            ordinary_memory_is_reached_where_promised

            accesses_that_no_region_allows_end_their_connection_only
            dropped_region_is_out_of_reach
            dropped_region_is_never_written_again
            region_serves_all_connections_of_its_domain
            region_of_another_domain_is_out_of_reach

            connect_to_nobody_answers_an_error
            listener_says_whether_it_has_more
            close_is_seen_by_the_peer_after_what_was_flushed
            drop_of_an_endpoint_closes_it
            close_completes_what_was_posted_exactly_once
            peer_close_completes_what_was_posted_exactly_once
            wait_answers_after_its_timeout
            wait_ends_when_another_thread_interrupts_it
            arm_misses_no_arrival
            two_sides_under_load_agree_on_every_byte
        }
    };
    (@each $attributes:tt $fixture:expr; $($name:ident)*) => {
        $($crate::conformance_suite! { @one $attributes $fixture; $name })*
    };
    (@one ($(#[$attribute:meta])?) $fixture:expr; $name:ident) => {
            #[test]
            $(#[$attribute])?
            fn $name() {
                $crate::transport::conformance::$name(&$fixture);
            }
    };
    (attribute: [$attribute:meta], $fixture:expr) => {
        $crate::conformance_suite! { @all (#[$attribute]) $fixture }
    };
    ($fixture:expr) => {
        $crate::conformance_suite! { @all () $fixture }
    };
}

/// A test that makes no progress for so long has hung. No result depends on it.
const HANG: Duration = Duration::from_secs(60);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);

/// What both sides ask for when a test does not care.
fn params(fixture: &dyn Fixture) -> ConnectParams {
    ConnectParams {
        recv_payload_max: 8192,
        recv_depth: 32,
        rdma_depth: 32,
        wait: fixture.wait(),
        ..ConnectParams::default()
    }
}

/// One side of a connection, and what it has received.
struct Side {
    endpoint: Box<dyn Endpoint>,
    received: VecDeque<Arrival>,
    completions: VecDeque<Completion>,
    end: Option<TransportError>,
}

#[derive(Debug, PartialEq, Eq)]
enum Arrival {
    Message(Vec<u8>, Vec<u8>),
    Immediate(u32, u32),
}

impl Side {
    fn new(endpoint: Box<dyn Endpoint>) -> Self {
        Self { endpoint, received: VecDeque::new(), completions: VecDeque::new(), end: None }
    }

    fn capabilities(&self) -> &Capabilities {
        self.endpoint.capabilities()
    }

    /// Takes everything that is here and sends what is queued; tells whether anything came.
    fn pump(&mut self) -> bool {
        let mut progress = false;
        while self.end.is_none() {
            match self.endpoint.recv() {
                Ok(None) => break,
                Ok(Some(Received::Immediate { data, size })) => {
                    self.received.push_back(Arrival::Immediate(data, size))
                }
                Ok(Some(Received::Message { head, payload_len })) => {
                    let payload = self.endpoint.payload().to_vec();
                    assert_eq!(payload.len(), payload_len as usize);
                    self.received.push_back(Arrival::Message(head.as_bytes().to_vec(), payload));
                }
                Err(error) => self.end = Some(error),
            }
            progress = true;
        }
        self.flush();
        while let Some(completion) = self.endpoint.poll_completion() {
            self.completions.push_back(completion);
            progress = true;
        }
        progress
    }

    fn flush(&mut self) {
        if self.end.is_none()
            && let Err(error) = self.endpoint.flush()
        {
            self.end = Some(error);
        }
    }

    fn wait_a_little(&mut self) {
        if self.end.is_none()
            && let Err(error) = self.endpoint.wait(Some(Duration::from_millis(1)))
        {
            self.end = Some(error);
        }
    }

    /// Writes or reads `range`, in as many segments as `lens`, from or to a slice of `memory` from its start.
    fn post(
        &mut self,
        write: bool,
        token: u64,
        local: LocalSegments,
        range: RemoteRange,
    ) -> Result<Posted, PostError> {
        match write {
            true => self.endpoint.rdma_write(OpToken(token), local, range, None),
            false => self.endpoint.rdma_read(OpToken(token), local, range),
        }
    }

    fn post_list(
        &mut self,
        write: bool,
        token: u64,
        local: &MemoryRef,
        ranges: &[RemoteRange],
    ) -> Result<PostedList, PostError> {
        match write {
            true => self.endpoint.rdma_write_list(OpToken(token), local, ranges),
            false => self.endpoint.rdma_read_list(OpToken(token), local, ranges),
        }
    }
}

/// A connection with both ends in hand.
struct Pair {
    client: Side,
    server: Side,
    client_domain: Arc<dyn Domain>,
    server_domain: Arc<dyn Domain>,
    listener: Box<dyn Listener>,
    /// Of further connections.
    params: ConnectParams,
}

impl Pair {
    fn new(fixture: &dyn Fixture) -> Self {
        Self::with(fixture, params(fixture), params(fixture))
    }

    fn with(fixture: &dyn Fixture, client: ConnectParams, server: ConnectParams) -> Self {
        let (client_domain, server_domain) = (fixture.domain(), fixture.domain());
        let mut listener = server_domain.listen(&fixture.address(), &server).unwrap();
        let (client, server) = connect(&*client_domain, &mut *listener, &client);
        Self { client, server, client_domain, server_domain, listener, params: params(fixture) }
    }

    /// One more connection between the two domains.
    fn another(&mut self) -> (Side, Side) {
        connect(&*self.client_domain, &mut *self.listener, &self.params)
    }

    /// Moves both sides along until `done`.
    fn until(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        let mut quiet_since = Instant::now();
        while !done(self) {
            if self.client.pump() | self.server.pump() {
                quiet_since = Instant::now();
                continue;
            }
            self.client.wait_a_little();
            self.server.wait_a_little();
            assert!(
                quiet_since.elapsed() < HANG,
                "waiting for {what}: client {:?}, server {:?}",
                self.client.end,
                self.server.end
            );
        }
    }

    /// What the server posts has been acknowledged, or the connection is over.
    fn until_server_completions(&mut self, count: usize) {
        self.until("completions", |pair| pair.server.completions.len() >= count);
    }

    fn until_both_over(&mut self) {
        self.until("both sides to see the end", |pair| {
            pair.client.end.is_some() && pair.server.end.is_some()
        });
    }

    /// The server's RDMA on the client's memory, until its data is where it belongs. A write's completion says only that the local
    /// memory is free again, so a message
    /// follows it. An error may be the operation's or the connection's.
    fn rdma(&mut self, write: bool, local: &[MemoryRef], range: RemoteRange) -> Result<(), TransportError> {
        let segments: LocalSegments = local.iter().cloned().collect();
        match self.server.post(write, 77, segments, range) {
            Ok(Posted::Done) => {}
            Ok(Posted::Pending) => {
                self.until_server_completions(1);
                let completion = self.server.completions.pop_front().unwrap();
                assert_eq!(completion.token, OpToken(77));
                completion.result?;
            }
            Err(error) => panic!("the post was refused: {error}"),
        }
        if self.server.endpoint.send_copy(b"fence", b"").is_err() {
            return Err(TransportError::Closed);
        }
        self.until("the fence", |pair| pair.client.end.is_some() || !pair.client.received.is_empty());
        match self.client.received.pop_front() {
            Some(arrival) => assert_eq!(arrival, Arrival::Message(b"fence".into(), vec![])),
            None => return Err(TransportError::Closed),
        }
        Ok(())
    }

    /// All of a list, in as many posts as it takes.
    fn rdma_list(
        &mut self,
        write: bool,
        local: &MemoryRef,
        ranges: &[RemoteRange],
    ) -> Result<(), TransportError> {
        let (mut rest, mut at) = (ranges, 0);
        while !rest.is_empty() {
            let memory = local.slice(at, local.len() - at).unwrap();
            let posted = self.server.post_list(write, 78, &memory, rest);
            match posted {
                Ok(posted) => {
                    assert!((1..=rest.len()).contains(&posted.ranges));
                    at += rest[..posted.ranges].iter().map(|range| range.len as usize).sum::<usize>();
                    rest = &rest[posted.ranges..];
                    self.until_server_completions(posted.pending as usize);
                }
                // What is under way makes room.
                Err(PostError::Full) => self.until_server_completions(1),
                Err(error) => panic!("the post was refused: {error}"),
            }
            for completion in self.server.completions.drain(..) {
                assert_eq!(completion.token, OpToken(78));
                completion.result?;
            }
        }
        self.rdma(true, &[local.slice(0, 0).unwrap()], RemoteRange { len: 0, ..ranges[0] })
    }

    fn client_memory(&self, len: usize) -> MemoryRef {
        memory(&*self.client_domain, len)
    }

    fn server_memory(&self, len: usize) -> MemoryRef {
        memory(&*self.server_domain, len)
    }

    /// Memory of the client that the server may read and write.
    fn client_region(&self, len: usize) -> Region {
        self.client_domain.register(self.client_memory(len), Access::all()).unwrap()
    }

    /// The connection works, both ways.
    fn assert_alive(&mut self) {
        self.client.received.clear();
        self.server.received.clear();
        self.client.endpoint.send_copy(b"ping", b"to server").unwrap();
        self.server.endpoint.send_copy(b"pong", b"to client").unwrap();
        self.until("a message each way", |pair| {
            !pair.client.received.is_empty() && !pair.server.received.is_empty()
        });
        assert_eq!(
            self.server.received.pop_front(),
            Some(Arrival::Message(b"ping".into(), b"to server".into()))
        );
        assert_eq!(
            self.client.received.pop_front(),
            Some(Arrival::Message(b"pong".into(), b"to client".into()))
        );
    }
}

/// Connects and accepts. The connect blocks, perhaps until the listener's loop has run, so it has a thread.
fn connect(domain: &dyn Domain, listener: &mut dyn Listener, params: &ConnectParams) -> (Side, Side) {
    let address = listener.address().clone();
    std::thread::scope(|scope| {
        let client = scope.spawn(|| domain.connect(&address, params, CONNECT_TIMEOUT).unwrap());
        let begin = Instant::now();
        let server = loop {
            if let Some(endpoint) = listener.accept().unwrap() {
                break endpoint;
            }
            assert!(begin.elapsed() < HANG, "nothing to accept");
            std::thread::yield_now();
        };
        let mut server = Side::new(server);
        // As a consumer that lets its peer send as many as were agreed.
        server.endpoint.expect_messages(params.recv_depth);
        (Side::new(client.join().unwrap()), server)
    })
}

/// Exactly `len` bytes of the memory that the domain likes best.
fn memory(domain: &dyn Domain, len: usize) -> MemoryRef {
    MemoryRef::new(domain.allocate(len).unwrap()).slice(0, len).unwrap()
}

fn heap_memory(len: usize) -> MemoryRef {
    MemoryRef::new(Arc::new(HeapMemory::allocate(len).unwrap())).slice(0, len).unwrap()
}

/// `len` bytes that differ with `seed` and position.
fn pattern(seed: usize, len: usize) -> Vec<u8> {
    let mut state = (seed as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        // xorshift64
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

fn fill(memory: &MemoryRef, seed: usize) -> Vec<u8> {
    let bytes = pattern(seed, memory.len());
    memory.span().write_from(0, &bytes);
    bytes
}

/// Cuts `memory` into `count` parts of uneven length, as far as its length allows.
fn parts(memory: &MemoryRef, count: usize) -> Vec<MemoryRef> {
    let mut list = Vec::with_capacity(count);
    let mut offset = 0;
    for index in 0..count {
        let rest = memory.len() - offset;
        let len = if index + 1 == count {
            rest
        } else {
            (rest / (count - index)).saturating_sub(index % 3).min(rest)
        };
        list.push(memory.slice(offset, len).unwrap());
        offset += len;
    }
    list
}

fn is_region_fault(error: &TransportError) -> bool {
    matches!(error, TransportError::Peer(PeerFault::Region(_)))
}

fn is_sim(pair: &Pair) -> bool {
    pair.client.capabilities().provider == Provider::Sim
}
