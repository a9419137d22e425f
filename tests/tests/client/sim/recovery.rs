//! Broken connections, silence and queues without room: nothing is lost, nothing is done twice.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use dafs_client::{
    Config, Datatype, Error, MethodOverride, Opcode, OpenOptions, ReconnectPolicy, Session, wait_all,
};
use dafs_proto::transport::sim::{FaultPlan, NodeId, SimDomain};
use dafs_proto::transport::{
    Access, Address, ConnectError, ConnectParams, Domain, Endpoint, Listener, LocalSegments, Memory,
    MemoryRef, OpToken, PeerFault, Provider, Region, RegionError, RemoteRange, TransportError,
};
use dafs_proto::wire::{Features, Flags};
use dafs_tests::sim::{Action, PORT, ScriptedWorld, World};
use dafs_tests::suite::{assert_same, bytes};

// [CLI-30] [SESS-51]
#[test]
fn request_cut_off_before_it_was_executed_is_sent_again_with_replay() {
    let world = ScriptedWorld::new(1);
    let session = world.session();
    let export = session.mount("data").unwrap();
    world.once(Opcode::Mkdir, |_| Action::CutBefore);
    export.create_dir("d", 0o755).unwrap();
    let sent: Vec<_> = world.log().into_iter().filter(|(opcode, _)| *opcode == Opcode::Mkdir).collect();
    assert_eq!(sent, [(Opcode::Mkdir, Flags::empty()), (Opcode::Mkdir, Flags::REPLAY)]);
    assert_eq!(session.statistics().unwrap().replies_replayed, 0, "the first never arrived");
    assert_eq!(session.reconnects(), 1);
}

// [CLI-30] [SESS-86] the reply comes from the server's cache: an exclusive create does not meet itself
#[test]
fn request_cut_off_after_it_was_executed_is_not_executed_twice() {
    let world = ScriptedWorld::new(2);
    let session = world.session();
    let export = session.mount("data").unwrap();
    for opcode in [Opcode::Mkdir, Opcode::Open, Opcode::Append, Opcode::Rename] {
        let replayed = session.statistics().unwrap().replies_replayed;
        world.once(opcode, |_| Action::CutAfter);
        match opcode {
            Opcode::Mkdir => drop(export.create_dir("d", 0o755).unwrap()),
            Opcode::Open => {
                drop(export.open_with("n", OpenOptions::new().write(true).create_new(true)).unwrap())
            }
            Opcode::Append => {
                let file = export.open_with("n", OpenOptions::new().append(true)).unwrap();
                assert_eq!(file.append(b"once").unwrap(), 0);
                assert_eq!(world.content("n"), b"once");
            }
            _ => export.rename("n", &export, "m", true).unwrap(),
        }
        assert!(world.log().contains(&(opcode, Flags::REPLAY)), "{opcode:?}");
        assert_eq!(session.statistics().unwrap().replies_replayed, replayed + 1, "{opcode:?}");
    }
}

#[test]
fn many_requests_in_flight_survive_a_cut_in_order() {
    for at in 1..40u64 {
        let plan = FaultPlan { cut_at_packet: Some(at * 3), ..FaultPlan::calm() };
        let world = ScriptedWorld::with(at, plan, Features::all());
        let Ok(session) = world.connect(&ScriptedWorld::config()) else { continue };
        let file = session.mount("data").and_then(|export| export.create("f")).unwrap();
        let data = bytes(at, 30 * 3000);
        let pendings: Vec<_> = data
            .chunks(3000)
            .enumerate()
            .map(|(i, part)| file.submit_write_at(part.to_vec(), i as u64 * 3000))
            .collect();
        for done in wait_all(pendings) {
            done.result.unwrap();
        }
        let mut back = vec![0; data.len()];
        file.read_exact_at(&mut back, 0).unwrap();
        assert_same(&back, &data, &format!("cut at packet {}", at * 3));
    }
}

#[test]
fn handshake_through_a_queue_that_is_nearly_always_full_succeeds() {
    for seed in 0..20 {
        let plan = FaultPlan { full_ppm: 900_000, ..FaultPlan::calm() };
        let world = ScriptedWorld::with(seed, plan, Features::all());
        let export = world.session().mount("data").unwrap();
        world.put("f", b"1");
        // In a new session files are opened again the same way.
        world.restart();
        export.metadata("f").unwrap();
    }
}

// A slot that such a request had would be missing for ever: with each there would be fewer.
#[test]
fn request_refused_after_it_had_its_slot_gives_the_slot_back() {
    let world = ScriptedWorld::new(5);
    let session = world.session();
    let export = session.mount("data").unwrap();
    let file = export.create("f").unwrap();
    world.net().set_plan(FaultPlan { full_late_ppm: 500_000, ..FaultPlan::calm() });
    let data = bytes(3, 200_000);
    for (index, part) in data.chunks(1_000).enumerate() {
        file.submit_write_at(part.to_vec(), index as u64 * 1_000).wait().into_result().unwrap();
    }
    // All at once, and by name.
    let again = data.chunks(1_000).zip((0..).step_by(1_000));
    let writes: Vec<_> = again.map(|(part, at)| file.submit_write_at(part.to_vec(), at)).collect();
    let named: Vec<_> = (0..20).map(|index| export.submit_create_dir(format!("d{index}"), 0o755)).collect();
    for written in writes {
        assert_eq!(written.wait().result.unwrap(), 1_000);
    }
    for made in named {
        made.wait().unwrap();
    }
    assert_eq!(session.reconnects(), 0);
    // The server drops a connection that refuses a read's reply when its data is in place.
    let reads: Vec<_> = (0..200).map(|index| file.submit_read_at(vec![0; 1_000], index * 1_000)).collect();
    for (read, expected) in reads.into_iter().zip(data.chunks(1_000)) {
        assert_eq!(read.wait().into_result().unwrap().1, expected);
    }
}

// [CLI-33]
#[test]
fn server_gone_for_good_ends_every_operation_within_the_attempts() {
    let world = ScriptedWorld::new(9);
    let reconnect = ReconnectPolicy { attempts_max: 3, ..ReconnectPolicy::default() };
    let session = world
        .connect(&Config { reconnect, connect_timeout: Duration::from_secs(1), ..ScriptedWorld::config() })
        .unwrap();
    let file = session.mount("data").unwrap().create("f").unwrap();
    let mut buffer = session.buffer(60_000).unwrap();
    let pending = file.submit_write_at(vec![0; 10], 0);
    world.net().partition(ScriptedWorld::CLIENT, World::SERVER);
    let error = file.read_buf_at(&mut buffer, 0).unwrap_err();
    assert!(matches!(error, Error::Connection { .. }), "{error}");
    assert!(pending.wait().result.is_err());
    assert!(matches!(session.ping(), Err(Error::Connection { .. })));
    // Nobody reaches the memory any more, and the library says so.
    assert!(matches!(file.write_buf_at(&buffer, 0), Err(Error::Invalid(_))));
}

/// A domain that remembers what was registered in it: where, and as what.
struct Watched {
    domain: SimDomain,
    registered: Mutex<Vec<(usize, RemoteRange)>>,
}

impl Domain for Watched {
    fn provider(&self) -> Provider {
        self.domain.provider()
    }

    fn pins_pages(&self) -> bool {
        self.domain.pins_pages()
    }

    fn allocate(&self, len: usize) -> Result<Arc<dyn Memory>, RegionError> {
        self.domain.allocate(len)
    }

    fn register(&self, memory: MemoryRef, access: Access) -> Result<Region, RegionError> {
        let place = memory.span().as_ptr() as usize;
        let region = self.domain.register(memory, access)?;
        self.registered.lock().unwrap().push((place, region.range()));
        Ok(region)
    }

    fn connect(
        &self,
        address: &Address,
        params: &ConnectParams,
        timeout: Duration,
    ) -> Result<Box<dyn Endpoint>, ConnectError> {
        self.domain.connect(address, params, timeout)
    }

    fn listen(&self, address: &Address, params: &ConnectParams) -> Result<Box<dyn Listener>, ConnectError> {
        self.domain.listen(address, params)
    }
}

impl Watched {
    /// How a peer of this domain would reach this memory, as it was registered last.
    fn range_of(&self, memory: &[u8]) -> RemoteRange {
        let place = memory.as_ptr() as usize;
        let registered = self.registered.lock().unwrap();
        registered.iter().rfind(|(of, _)| *of == place).expect("memory that was registered").1
    }

    /// A peer writes to a range.
    fn write(&self, world: &World, range: RemoteRange) -> Result<(), TransportError> {
        let (at, params) = (Address::Sim(77), ConnectParams::default());
        let peer = world.net().domain(NodeId(77));
        let mut listener = peer.listen(&at, &params).unwrap();
        let _own = self.domain.connect(&at, &params, Duration::from_secs(1)).unwrap();
        let mut endpoint = listener.accept().unwrap().expect("a peer");
        let memory = MemoryRef::new(peer.allocate(8).unwrap());
        memory.span().write_from(0, &[0xbb; 8]);
        let to = range.slice(0, 8).unwrap();
        endpoint.rdma_write(OpToken(1), LocalSegments::from_iter([memory]), to, None).unwrap();
        endpoint.flush().unwrap();
        loop {
            // Where it ends the connection, the completion says so as well.
            let _ = endpoint.recv();
            match endpoint.poll_completion() {
                Some(completion) => return completion.result,
                None => world.let_time_pass(Duration::from_micros(10)),
            }
        }
    }
}

// [CLI-12]
#[test]
fn session_that_ends_leaves_none_of_its_memory_to_be_reached() {
    let world = ScriptedWorld::new(14);
    let domain = world.net().domain(ScriptedWorld::CLIENT);
    let domain = Arc::new(Watched { domain, registered: Mutex::default() });
    let reconnect = ReconnectPolicy { attempts_max: 1, ..ReconnectPolicy::default() };
    let method = MethodOverride::Direct;
    let connect_timeout = Duration::from_secs(1);
    let config = Config { reconnect, connect_timeout, method, ..ScriptedWorld::config() };
    let session = Session::connect_with(domain.clone(), PORT, &config, world.clock()).unwrap();
    let file = session.mount("data").unwrap().create("f").unwrap();
    file.write_all_at(&[1; 60_000], 0).unwrap();
    let mut buffer = session.buffer(60_000).unwrap();
    domain.write(&world, domain.range_of(&buffer)).expect("the session lasts");
    assert_eq!(buffer[..9], [0xbb, 0xbb, 0xbb, 0xbb, 0xbb, 0xbb, 0xbb, 0xbb, 0]);
    buffer.fill(0);
    // One of them was registered for the operation.
    world.hold_reads(Duration::from_secs(1));
    let ordinary = file.submit_read_at(vec![0; 60_000], 0);
    session.flush();
    world.net().partition(ScriptedWorld::CLIENT, World::SERVER);
    file.read_buf_at(&mut buffer, 0).unwrap_err();
    let ordinary = ordinary.wait();
    ordinary.result.unwrap_err();
    world.net().heal(ScriptedWorld::CLIENT, World::SERVER);
    world.let_time_pass(Duration::from_secs(2));
    for memory in [&*buffer, &*ordinary.buffer] {
        let error = domain.write(&world, domain.range_of(memory)).unwrap_err();
        assert!(matches!(error, TransportError::Peer(PeerFault::Region(_))), "{error}");
        assert!(memory.iter().all(|byte| *byte == 0));
    }
}

// [CLI-33] however long each attempt may take, and however many there may be.
#[test]
fn server_gone_for_good_ends_operations_within_the_reconnect_time() {
    let times = [Duration::ZERO, Duration::from_secs(5), Duration::from_secs(50)].map(|time_max| {
        let world = ScriptedWorld::new(12);
        let reconnect = ReconnectPolicy { attempts_max: u32::MAX, time_max, ..ReconnectPolicy::default() };
        let connect_timeout = Duration::from_secs(20);
        let session =
            world.connect(&Config { reconnect, connect_timeout, ..ScriptedWorld::config() }).unwrap();
        world.net().partition(ScriptedWorld::CLIENT, World::SERVER);
        let begin = world.net().now();
        let error = session.ping().unwrap_err();
        assert!(matches!(error, Error::Connection { .. }), "{error}");
        assert!(error.to_string().contains("attempts to connect again in "), "{error}");
        world.net().now() - begin
    });
    // The first is the time until the server counts as lost, and one attempt that has none.
    let [lost, five, fifty] = times;
    for (time, allowed) in [(five, 5), (fifty, 50)] {
        let allowed = Duration::from_secs(allowed);
        assert!(time <= lost + allowed + Duration::from_millis(200), "{time:?}, of it {lost:?}");
        assert!(time > lost + allowed / 2, "{time:?}, of it {lost:?}");
    }
}

// [CLI-101]
#[test]
fn pauses_between_attempts_double_up_to_their_bound() {
    let time = |attempts_max| {
        let world = ScriptedWorld::new(13);
        let (backoff_min, backoff_max) = (Duration::from_secs(10), Duration::from_secs(40));
        let reconnect = ReconnectPolicy { attempts_max, time_max: Duration::MAX, backoff_min, backoff_max };
        let connect_timeout = Duration::from_secs(1);
        let session =
            world.connect(&Config { reconnect, connect_timeout, ..ScriptedWorld::config() }).unwrap();
        world.net().partition(ScriptedWorld::CLIENT, World::SERVER);
        let begin = world.net().now();
        session.ping().unwrap_err();
        world.net().now() - begin
    };
    let times = [1, 2, 3, 4, 5].map(time);
    // An attempt takes a second at most.
    let pauses: Vec<u64> = times.windows(2).map(|pair| (pair[1] - pair[0]).as_secs() / 10).collect();
    assert_eq!(pauses, [1, 2, 4, 4]);
}

// [CLI-34] [SESS-97] a silent server is given up after its lease, and the session taken up again
#[test]
fn server_silent_for_its_lease_is_connected_to_again() {
    let world = ScriptedWorld::new(10);
    let session = world.session();
    // A session without a mount would end with its connection.
    let _export = session.mount("data").unwrap();
    let id = session.agreed().session;
    let mut is_silent = true;
    world.hook(move |header| {
        is_silent &= !header.flags.contains(Flags::REPLAY);
        if is_silent { Action::Mute } else { Action::Serve }
    });
    let begin = world.net().now();
    session.ping().unwrap();
    assert!(world.net().now() - begin >= Duration::from_millis(session.agreed().lease_ms.into()));
    assert_eq!((session.reconnects(), session.agreed().session), (1, id));
}

// [CLI-11]
#[test]
fn operation_beyond_its_time_ends_and_its_slot_is_not_lost() {
    let world = ScriptedWorld::new(11);
    let session = world
        .connect(&Config { operation_timeout: Some(Duration::from_millis(200)), ..ScriptedWorld::config() })
        .unwrap();
    let export = session.mount("data").unwrap();
    world.once(Opcode::Mkdir, |_| Action::Ignore);
    let error = export.create_dir("d", 0o755).unwrap_err();
    assert!(matches!(error, Error::TimedOut { operation: Opcode::Mkdir, timeout_ms: 200 }), "{error}");
    assert_eq!(std::io::Error::from(error).kind(), std::io::ErrorKind::TimedOut);
    session.ping().unwrap();
}

// [SESS-51]
#[test]
fn resent_request_of_a_dropped_view_moves_nothing() {
    let world = ScriptedWorld::new(61);
    let session = world.session();
    let file = session.mount("data").unwrap().create("f").unwrap();
    let view = session.view(&Datatype::bytes(4).vector(4, 1, 2)).unwrap();
    for opcode in [Opcode::WriteView, Opcode::ReadView] {
        world.once(opcode, |_| Action::CutBefore);
        let place = view.at(0, 0);
        let given_up = match opcode {
            Opcode::WriteView => file.submit_write_view(&place, vec![1; 16]),
            _ => file.submit_read_view(&place, vec![1; 16]),
        };
        assert!(matches!(given_up.cancel().result, Err(Error::Cancelled)), "{opcode:?}");
        session.ping().unwrap();
        assert_eq!(world.count(opcode), 2, "the server hears of it again");
    }
    assert_eq!((session.reconnects(), world.content("f")), (2, Vec::new()));
    assert_eq!(file.write_view(&view.at(0, 0), &[7; 16]).unwrap(), 16);
}
