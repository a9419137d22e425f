//! RDMA end to end: what operations cost the server, and peers and memory that go away in the middle of transfers.
#![cfg(feature = "verbs")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "all of this is test code, helpers included")]

/// The provider's name stands in the path of each test.
mod verbs {
    use std::array::from_fn;
    use std::collections::BTreeMap;
    use std::process::{Child, Command, Stdio};

    use dafs_client::{Background, Config, File, MethodOverride, Provider, Session, WaitPolicy};
    use dafs_proto::transport::verbs::totals;
    use dafs_proto::transport::{Access, Address};
    use dafs_proto::wire::{Header, Opcode, Status};
    use dafs_tests::harness::{Harness, On, device_address, key_for};
    use dafs_tests::program::Program;
    use dafs_tests::raw::{Raw, read_body};
    use dafs_tests::suite::{assert_same, bytes, wait_for};

    /// What the provider of a server has counted.
    fn counters(server: &Program) -> BTreeMap<String, u64> {
        let text = server.metrics();
        let named = text.lines().filter_map(|line| line.strip_prefix("dafs_verbs_")?.split_once("_total "));
        named.map(|(name, value)| (name.to_owned(), value.parse().unwrap())).collect()
    }

    /// What is counted of an operation: work requests, RDMA among them, doorbells, completions, bytes copied for want of registration.
    const COUNTED: [&str; 5] = ["work_requests", "rdma_requests", "doorbells", "completions", "bytes_copied"];

    /// Places in it.
    const RDMA_REQUESTS: usize = 1;
    const COMPLETIONS: usize = 3;

    type Counts = [u64; COUNTED.len()];

    /// What this process has counted: the client's part.
    fn own_counts() -> Counts {
        let named = totals().named();
        COUNTED.map(|name| named.iter().find(|(own, ..)| *own == name).unwrap().2)
    }

    /// What both sides have told when neither tells more. Each tells before it sleeps: so the client, which sleeps in every operation,
    /// has told what it did until its last request was on its way.
    fn counts_at_rest(server: &Program) -> [Counts; 2] {
        let mut last = None;
        loop {
            let counters = counters(server);
            let now = [COUNTED.map(|name| counters[name]), own_counts()];
            if last.replace(now) == Some(now) {
                return now;
            }
        }
    }

    const COUNTING: &str = "DAFS_RDMA_COUNTING";

    /// [VERBS-21] [VERBS-34]: what each method costs both sides. In a process where nobody else counts.
    #[test]
    #[ignore = "needs rdma-device"]
    fn operations_cost_both_sides_the_requests_of_their_method() {
        if std::env::var_os(COUNTING).is_some() {
            return count_requests();
        }
        let test = "verbs::operations_cost_both_sides_the_requests_of_their_method";
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--ignored", "--exact", "--nocapture", test]).env(COUNTING, "1");
        assert!(child.status().unwrap().success());
    }

    /// The other process of the test above. Messages share completions, so that 24 operations are counted at once.
    fn count_requests() {
        use MethodOverride::{ClientInitiated, Direct, Eager, Hybrid, Inline};
        const COUNT: u64 = 24;
        const SIZE: usize = 4096;
        let server = Program::start_counted(On::Verbs, &["--no-calibrate"]);
        let wait = WaitPolicy::Event;
        let config = |method| Config { method, wait, background: Background::None, ..Config::default() };
        // None ends before the last: that would be counted too.
        let (mut sessions, mut wrong) = (Vec::new(), Vec::new());
        // Each request and each reply is received; a third of a server's messages, a twelfth of a client's, have a completion.
        let (served, asked) = ([24, 0, 24, 24 + 8, 0], [24, 0, 24, 24 + 2, 0]);
        // RDMA has one always, and the message that leaves with it has none of its own.
        let (one_sided, copied) = ([48, 24, 24, 48, 0], COUNT * SIZE as u64);
        for (method, write, expected) in [
            (Inline, false, [served, asked]),
            (Inline, true, [served, asked]),
            (Direct, false, [one_sided, asked]),
            // The server asks for the data, and answers when it is there.
            (Direct, true, [[48, 24, 48, 48, 0], asked]),
            // An RDMA write with immediate data is all of it; what a client sends of a small buffer is copied, not registered.
            (Eager, false, [[24, 24, 24, 48, 0], asked]),
            (Eager, true, [served, [24, 24, 24, 48, copied]]),
            // The client fetches what the server has put there, or writes before it asks.
            (ClientInitiated, false, [served, [48, 24, 48, 48, copied]]),
            (ClientInitiated, true, [served, [48, 24, 24, 48, copied]]),
            (Hybrid, false, [one_sided, asked]),
            (Hybrid, true, [served, [48, 24, 24, 48, copied]]),
        ] {
            let session = server.session_with(&config(method));
            let file = session.mount("mem").unwrap().create("f").unwrap();
            file.write_all_at(&bytes(1, 128 << 10), 0).unwrap();
            let mut buffer = session.buffer(SIZE).unwrap();
            let mut run = |count: u64| {
                for index in 0..count {
                    let moved = match write {
                        true => file.write_buf_at(&buffer, index * 4096).unwrap(),
                        false => file.read_buf_at(&mut buffer, index * 4096).unwrap(),
                    };
                    assert_eq!(moved, SIZE);
                }
            };
            run(2);
            let before = counts_at_rest(&server);
            run(COUNT);
            let after = counts_at_rest(&server);
            let mut grown: [Counts; 2] =
                from_fn(|side| from_fn(|counter| after[side][counter] - before[side][counter]));
            // Where a client has RDMA of its own, that of its last operation ends before or after it sleeps for the reply.
            let (client, wanted) = (&mut grown[1], expected[1]);
            if wanted[RDMA_REQUESTS] > 0 && client[COMPLETIONS].abs_diff(wanted[COMPLETIONS]) == 1 {
                client[COMPLETIONS] = wanted[COMPLETIONS];
            }
            if grown != expected {
                wrong.push(format!(
                    "{method:?}, write {write}: server and client {grown:?}, not {expected:?}"
                ));
            }
            sessions.push((session, file));
        }
        assert!(wrong.is_empty(), "{COUNTED:?} for {COUNT} operations:\n{}", wrong.join("\n"));
    }

    /// How often devices told a peer that no receive was posted, where they count that (Soft-RoCE does).
    fn refusals() -> Option<u64> {
        let devices = std::fs::read_dir("/sys/class/infiniband").ok()?;
        let counts = devices.filter_map(|device| {
            let counter = device.ok()?.path().join("ports/1/hw_counters/send_rnr_err");
            std::fs::read_to_string(counter).ok()?.trim().parse::<u64>().ok()
        });
        counts.reduce(|sum, count| sum + count)
    }

    // [VERBS-56] [SESS-23]
    #[test]
    #[ignore = "needs soft-roce: it counts refusals"]
    fn client_that_keeps_to_its_credits_always_finds_a_receive() {
        let harness = Harness::start(On::Verbs);
        let before = refusals().unwrap();
        let config = Config { method: MethodOverride::Inline, ..Config::default() };
        let session = harness.session_with(&config);
        assert_eq!(session.credits(), 1, "an idle session is granted little");
        let file = session.mount("mem").unwrap().create("f").unwrap();
        for round in 0..3u64 {
            let pendings: Vec<_> =
                (0..200).map(|index| file.submit_write_at(bytes(round, 3000), index * 3000)).collect();
            pendings.into_iter().for_each(|pending| assert_eq!(pending.wait().result.unwrap(), 3000));
            assert!(session.credits() > 16, "a busy one is granted what it wants: {}", session.credits());
            // Fewer are ready after a while of one at a time, and more again with the next burst.
            for _ in 0..50 {
                session.ping().unwrap();
            }
        }
        assert_eq!(refusals().unwrap(), before);
    }

    const CHILD: &str = "DAFS_RDMA_CHILD_URL";

    /// The other process of the test below: moves data until it is killed.
    fn move_data(url: &str) {
        let key = key_for(&Address::Verbs(url.trim_start_matches("dafs+verbs://").parse().unwrap()));
        let config = Config { key, method: MethodOverride::Direct, ..Config::default() };
        let session = Session::connect(url, &config).unwrap();
        let file = session.mount("mem").unwrap().create("child").unwrap();
        file.write_all_at(&vec![1; 1 << 20], 0).unwrap();
        let submit = |file: &File, write: bool| {
            let buffer = session.buffer(1 << 20).unwrap();
            if write { file.submit_write_at(buffer, 0) } else { file.submit_read_at(buffer, 0) }
        };
        loop {
            let pendings: Vec<_> = (0..8).map(|index| submit(&file, index % 2 == 0)).collect();
            pendings.into_iter().for_each(|pending| assert_eq!(pending.wait().result.unwrap(), 1 << 20));
        }
    }

    struct Killed(Child);

    impl Drop for Killed {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    // [PROV-26] [VERBS-23]
    #[test]
    #[ignore = "needs rdma-device"]
    fn client_killed_in_the_middle_of_transfers_disturbs_nobody() {
        if let Ok(url) = std::env::var(CHILD) {
            return move_data(&url);
        }
        let program = Program::start(On::Verbs, &["--no-calibrate"]);
        let session = program.session();
        let file = session.mount("mem").unwrap().create("bystander").unwrap();
        let data = bytes(2, 100_000);
        file.write_all_at(&data, 0).unwrap();
        let moved = || {
            let statistics = session.statistics().unwrap();
            statistics.bytes_read.iter().chain(&statistics.bytes_written).sum::<u64>()
        };
        for round in 0..3 {
            let before = moved();
            let child = Command::new(std::env::current_exe().unwrap())
                .args([
                    "--ignored",
                    "--exact",
                    "verbs::client_killed_in_the_middle_of_transfers_disturbs_nobody",
                ])
                .env(CHILD, program.address().to_string())
                .stdout(Stdio::null())
                .spawn();
            let child = Killed(child.unwrap());
            wait_for("the child moves data", || moved() >= before + (4 << 20));
            drop(child);
            wait_for("its connection is gone", || session.statistics().unwrap().connections == 1);
            let mut found = vec![0; data.len()];
            file.read_exact_at(&mut found, 0).unwrap();
            assert_same(&found, &data, "the bystander's data");
            assert_eq!(session.reconnects(), 0, "round {round}");
        }
        assert_eq!(session.statistics().unwrap().protocol_errors, 0);
    }

    // [VERBS-32] [PROV-16] [PROV-19]
    #[test]
    #[ignore = "needs rdma-device"]
    fn memory_that_is_taken_back_under_the_server_is_not_written_again() {
        const LEN: u32 = 4 << 20;
        let harness = Harness::start(On::Verbs);
        let session = harness.session();
        let bystander = session.mount("mem").unwrap().create("bystander").unwrap();
        bystander.write_all_at(&bytes(3, LEN as usize), 0).unwrap();
        let mut ended = 0;
        for _ in 0..6 {
            let (mut raw, _) = Raw::session(harness.address(), 4);
            let root = raw.mount("mem");
            let file = raw.create(root, b"bystander");
            let region = raw.region(LEN as usize, Access::REMOTE_WRITE);
            let (memory, range) = (region.memory().clone(), region.range());
            let segment = [range.key.0, range.offset, u64::from(LEN)];
            let mut header = Header::request(Opcode::Read, file);
            raw.begin(&mut header);
            raw.send(header, &read_body(0, LEN, Some(segment)), &[]);
            // The server has begun, or has not, or is through.
            std::thread::yield_now();
            drop(region);
            let mine = vec![0xee; memory.len()];
            memory.span().write_from(0, &mine);
            match raw.receive() {
                Some(reply) => assert!([Status::OK, Status::REMOTE_ACCESS].contains(&reply.header.status)),
                None => ended += 1,
            }
            assert_same(&memory.span().to_vec(), &mine, "memory that was taken back");
            let mut found = vec![0; 1000];
            bystander.read_exact_at(&mut found, 0).unwrap();
            assert_same(&found, &bytes(3, 1000), "the bystander's data");
        }
        assert!(ended >= 1, "every transfer was through before its memory was taken back");
        assert_eq!(session.reconnects(), 0);
    }

    /// The address of a server without its scheme, so that the client chooses the provider.
    fn chosen_by_address(harness: &Harness) -> Session {
        let url = match harness.address() {
            Address::Tcp(address) | Address::Verbs(address) => format!("dafs://{address}"),
            other => panic!("{other}"),
        };
        let key = key_for(&Address::Verbs((device_address(), 0).into()));
        Session::connect(url, &Config { key, ..Config::default() }).unwrap()
    }

    // [VERBS-42]
    #[test]
    #[ignore = "needs rdma-device"]
    fn address_without_provider_takes_rdma_or_falls_back_to_tcp_with_reason() {
        let harness = Harness::start(On::Verbs);
        let session = chosen_by_address(&harness);
        assert_eq!(session.provider(), Provider::Verbs);
        assert!(session.provider_reason().contains("has a route to it"), "{}", session.provider_reason());
        session.ping().unwrap();
        // The device has a route, and nobody listens for RDMA there.
        let harness = Harness::start_with(On::Verbs, |config| {
            config.listeners = vec![Address::Tcp((device_address(), 0).into())];
        });
        let session = chosen_by_address(&harness);
        assert_eq!(session.provider(), Provider::Tcp);
        assert!(session.provider_reason().contains("no RDMA: "), "{}", session.provider_reason());
        session.ping().unwrap();
    }
}
