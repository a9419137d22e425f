//! Peers in processes of their own: killed, or with little memory that they may lock.

use super::*;

/// [VERBS-23] [PROV-26] The peer is killed while data moves to and from its memory.
#[test]
#[ignore = "needs rdma-device"]
fn peer_killed_in_the_middle_of_rdma_ends_its_connection_only() {
    if let Some((_, to)) = role() {
        return victim(&to);
    }
    let test = "peer_killed_in_the_middle_of_rdma_ends_its_connection_only";
    let mut pair = Pair::new();
    for round in 0..3u64 {
        let mut child = Process::start("victim", pair.listener.address(), test, &[]);
        let mut server = accept(&mut pair.listener);
        let head = next_message(&mut server).unwrap();
        let number = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().unwrap());
        let remote = RemoteRange { key: RegionKey(number(0)), offset: number(8), len: 1 << 20 };
        let local = memory(1 << 20);
        for token in 0..12u64 {
            let segments = [local.clone()].into_iter().collect();
            let posted = match token % 2 {
                0 => server.rdma_write(OpToken(token), segments, remote, None),
                _ => server.rdma_read(OpToken(token), segments, remote),
            };
            assert_eq!(posted.unwrap(), Posted::Pending);
        }
        server.flush().unwrap();
        // Some are done, and some are not.
        let done = (0..=round).map(|_| completion(&mut server)).collect::<Vec<_>>();
        assert!(done.iter().all(|completion| completion.result.is_ok()));
        child.kill();
        let error = end_of(&mut server);
        let mut seen: Vec<u64> = done.iter().map(|completion| completion.token.0).collect();
        seen.extend((seen.len()..12).map(|_| completion(&mut server).token.0));
        seen.sort_unstable();
        assert!(seen.into_iter().eq(0..12), "{error}");
        assert!(server.poll_completion().is_none());
        let mine = fill(&local, 1);
        pair.assert_alive();
        assert!(local.span().to_vec() == mine, "written after it was given back");
    }
}

/// The other process of the test above.
fn victim(to: &Address) {
    let domain = VerbsDomain::new();
    let mut endpoint = domain.connect_verbs(to, &params(), HANG).unwrap();
    let region = domain.register(memory(1 << 20), Access::all()).unwrap();
    let mut head = region.range().key.0.to_le_bytes().to_vec();
    head.extend(region.range().offset.to_le_bytes());
    endpoint.send_copy(&head, b"").unwrap();
    endpoint.flush().unwrap();
    loop {
        endpoint.wait(None).unwrap();
        assert!(endpoint.recv().unwrap().is_none());
    }
}

/// [VERBS-33] [VERBS-64] [VERBS-71] With little memory that may be locked: clear errors, and data still moves.
#[test]
#[ignore = "needs rdma-device"]
fn low_memlock_limit_is_an_error_with_advice_or_a_copy() {
    if let Some((role, to)) = role() {
        return with_little_locked_memory(&role, &to);
    }
    let test = "low_memlock_limit_is_an_error_with_advice_or_a_copy";
    for (limit_kib, role) in [(16, "no room"), (4096, "little room")] {
        let limit = format!("ulimit -l {limit_kib} && exec \"$0\" \"$@\"");
        let wrap = ["setpriv", "--bounding-set", "-ipc_lock", "bash", "-c", &limit];
        let mut listening = VerbsDomain::new().listen_verbs(&address(), &params()).unwrap();
        let mut child = Process::start(role, listening.address(), test, &wrap);
        let server = (role == "little room").then(|| accept(&mut listening));
        if let Some(mut server) = server {
            // Ends with the other side.
            assert!(matches!(end_of(&mut server), TransportError::Closed));
        }
        child.join();
    }
}

/// The other process of the test above.
fn with_little_locked_memory(role: &str, to: &Address) {
    let domain = VerbsDomain::new();
    let says_what_to_do = |text: &str, limit: &str| {
        for word in [limit, "locked memory", "ulimit -l", "LimitMEMLOCK", "CAP_IPC_LOCK"] {
            assert!(text.contains(word), "{text}: no {word}");
        }
    };
    if role == "no room" {
        let error = domain.connect_verbs(to, &params(), HANG).err().expect("receives do not fit");
        assert!(matches!(error, ConnectError::System { .. }));
        says_what_to_do(&error.to_string(), "16 KiB");
        return;
    }
    let mut endpoint = domain.connect_verbs(to, &params(), HANG).unwrap();
    let error = domain.register(memory(8 << 20), Access::all()).expect_err("more than the limit");
    assert!(matches!(error, RegionError::System { .. }));
    says_what_to_do(&error.to_string(), "4096 KiB");
    let region = domain.register(memory(65_536), Access::all()).unwrap();
    // This side's own memory is too large to be registered: a part of it goes through a buffer. To itself, as nobody else is here.
    let mut listener = domain.listen_verbs(&address(), &params()).unwrap();
    let (mut client, mut server) = connect(&domain, &mut listener);
    let large = memory(8 << 20);
    let expected = fill(&large.slice(100, 65_536).unwrap(), 4);
    let before = server.counters().bytes_copied;
    let part = [large.slice(100, 65_536).unwrap()].into_iter().collect();
    assert_eq!(server.rdma_write(OpToken(1), part, region.range(), None).unwrap(), Posted::Pending);
    server.send_copy(b"reply", b"").unwrap();
    server.flush().unwrap();
    assert_eq!(next_message(&mut client).unwrap(), b"reply");
    completion(&mut server).result.unwrap();
    assert!(region.memory().span().to_vec() == expected);
    assert_eq!(server.counters().bytes_copied - before, 65_536);
    endpoint.close();
}

/// [VERBS-51] The end of a process waits for what its closed connections have sent.
#[test]
#[ignore = "needs rdma-device"]
fn process_that_ends_loses_nothing_of_what_it_flushed() {
    if let Some((_, to)) = role() {
        return sends_and_ends(&to);
    }
    let test = "process_that_ends_loses_nothing_of_what_it_flushed";
    let mut listener = VerbsDomain::new().listen_verbs(&address(), &params()).unwrap();
    let mut child = Process::start("sender", listener.address(), test, &[]);
    let mut server = accept(&mut listener);
    // All that is sent lies behind a message for which no receive is posted, until the sender is about to end.
    let mut said = BufReader::new(child.child.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert!(said.any(|line| line.contains("dropped")));
    for number in 0..4u8 {
        assert_eq!(next_message(&mut server).unwrap(), [number]);
    }
    assert!(matches!(end_of(&mut server), TransportError::Closed));
    assert!(child.child.wait().unwrap().success());
}

/// The other process of the test above.
fn sends_and_ends(to: &Address) {
    let mut endpoint = VerbsDomain::new().connect_verbs(to, &params(), HANG).unwrap();
    for number in 0..4u8 {
        endpoint.send_copy(&[number], &[7; 4000]).unwrap();
    }
    endpoint.flush().unwrap();
    drop(endpoint);
    println!("dropped");
    finish_closing();
    // Nothing is left for the end of the process to cut.
    assert_eq!(linger::count(), 0);
    std::process::exit(0);
}

/// [VERBS-50] With one descriptor left, of the two that a connection takes, a peer is told no before it has begun.
#[test]
#[ignore = "needs rdma-device"]
fn peer_is_refused_where_descriptors_are_used_up() {
    if role().is_some() {
        return with_one_descriptor_left();
    }
    let test = "peer_is_refused_where_descriptors_are_used_up";
    let wrap = ["bash", "-c", "ulimit -n 200 && exec \"$0\" \"$@\""];
    Process::start("server", &address(), test, &wrap).join();
}

/// The other process of the test above.
fn with_one_descriptor_left() {
    let domain = VerbsDomain::new();
    let mut listener = domain.listen_verbs(&address(), &params()).unwrap();
    let (mut client, mut server) = connect(&domain, &mut listener);
    let refused = life::prepare(&mut listener);
    let mut files: Vec<_> = std::iter::from_fn(|| std::fs::File::open("/dev/null").ok()).collect();
    files.pop();
    refused.id.connect(&Hello::new(&params()).encode(), refused.reads()).unwrap();
    assert_eq!(life::next_event(&refused.id, &mut listener).kind, CmEventKind::Rejected);
    drop(files);
    // The one that is there goes on, and others are taken again.
    client.send_copy(b"ping", b"").unwrap();
    client.flush().unwrap();
    assert_eq!(next_message(&mut server).unwrap(), b"ping");
    connect(&domain, &mut listener);
}

fn role() -> Option<(String, Address)> {
    let told = std::env::var(ROLE).ok()?;
    let (role, to) = told.split_once('@')?;
    Some((role.to_owned(), Address::Verbs(to.parse().unwrap())))
}

/// A test of this program in a process of its own.
struct Process {
    child: Child,
}

impl Process {
    fn start(role: &str, to: &Address, test: &str, wrap: &[&str]) -> Self {
        let Address::Verbs(to) = to else { panic!("{to}") };
        let own = std::env::current_exe().unwrap();
        let mut words: Vec<_> = wrap.iter().map(std::ffi::OsString::from).collect();
        words.push(own.into());
        let child = Command::new(&words[0])
            .args(&words[1..])
            .args([
                "--ignored",
                "--nocapture",
                "--exact",
                &format!("transport::verbs::tests::processes::{test}"),
            ])
            .env(ROLE, format!("{role}@{to}"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Self { child }
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// It ran its test, and that passed.
    fn join(&mut self) {
        let output = BufReader::new(self.child.stdout.take().unwrap());
        let lines: Vec<String> = output.lines().map(Result::unwrap).collect();
        let status = self.child.wait().unwrap();
        let ran = lines.iter().any(|line| line.contains("1 passed"));
        let _ = std::io::stdout().write_all(lines.join("\n").as_bytes());
        assert!(status.success() && ran, "{status}");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
