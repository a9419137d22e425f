//! Many threads on one session, and a thread of the library's own that moves it along.

use dafs_client::{Background, Config, OpenOptions, wait_any, wait_some};
use dafs_tests::harness::{Harness, On};
use dafs_tests::on_each_provider_and_three_workers;
use dafs_tests::suite::{assert_same, bytes, is_all};

use crate::cuts::wait_for;

on_each_provider_and_three_workers! {
    threads_of_one_session_each_get_their_own_answers,
    threads_meeting_in_a_session_get_their_own_answers,
    operations_progress_without_calls_where_a_thread_is_asked_for,
    operations_of_several_sessions_are_waited_for_together,
    operations_cancelled_in_flight_leave_the_session_whole,
    batch_of_operations_gives_each_its_own_answer,
    wait_some_takes_what_has_ended_and_leaves_the_rest_in_order,
}

/// Reads that the server has executed so far.
fn reads(watcher: &dafs_client::Session) -> u64 {
    let statistics = watcher.statistics().unwrap();
    statistics.operations.iter().find(|(name, _)| name == "Read").map_or(0, |(_, count)| *count)
}

// [CLI-37] [CLI-109]
fn batch_of_operations_gives_each_its_own_answer(on: On) {
    let harness = Harness::start(on);
    let (session, watcher) = (harness.session(), harness.session());
    let file = session.mount("mem").unwrap().create("f").unwrap();
    let data = bytes(9, 64 * 16);
    file.write_all_at(&data, 0).unwrap();
    let before = reads(&watcher);
    let mut pendings = Vec::new();
    let cork = session.cork();
    for index in 0..16 {
        pendings.push(file.submit_read_at(vec![0; 64], index * 64));
    }
    if let On::Tcp = on {
        // Over shared memory a busy server may find them before their bell rings.
        assert_eq!(reads(&watcher), before, "nothing leaves under the cork");
    }
    drop(cork);
    // How many at once is for the credits to say; the others follow as answers are taken.
    wait_for(|| reads(&watcher) > before);
    for (index, pending) in pendings.into_iter().enumerate() {
        let transferred = pending.wait();
        assert_eq!(transferred.result.unwrap(), 64);
        assert_same(&transferred.buffer, &data[index * 64..][..64], "a read under the cork");
    }
    // A wait under a cork sends what it waits for, and corks nest.
    let (outer, inner) = (session.cork(), session.cork());
    let pending = file.submit_read_at(vec![0; 64], 0);
    assert_eq!(pending.wait().result.unwrap(), 64);
    drop(outer);
    let pending = file.submit_read_at(vec![0; 64], 64);
    drop(inner);
    wait_for(|| reads(&watcher) == before + 18);
    assert_eq!(pending.wait().result.unwrap(), 64);
    // Its requests are sent though nobody waits; and so is a blocking call's within it.
    let cork = session.cork();
    file.write_all_at(b"now", 0).unwrap();
    drop(cork);
}

// [CLI-110]
fn wait_some_takes_what_has_ended_and_leaves_the_rest_in_order(on: On) {
    let harness = Harness::start(on);
    let session = harness.session();
    let file = session.mount("mem").unwrap().create("f").unwrap();
    file.write_all_at(&bytes(4, 4096), 0).unwrap();
    let mut pendings: Vec<_> =
        (0..40).map(|index| file.submit_read_at(vec![0; index + 1], index as u64)).collect();
    let mut seen = Vec::new();
    while !pendings.is_empty() {
        let ended = wait_some(&mut pendings);
        assert!(!ended.is_empty());
        seen.extend(ended.into_iter().map(|transferred| transferred.result.unwrap()));
    }
    seen.sort_unstable();
    assert_eq!(seen, (1..=40).collect::<Vec<_>>());
    assert!(wait_some(&mut pendings).is_empty());
}

// A session that only one thread has used takes the fast path: here two threads race into it, each time anew.
fn threads_meeting_in_a_session_get_their_own_answers(on: On) {
    const PART: usize = 64;
    let harness = Harness::start(on);
    for round in 0..on.rounds(200) {
        let session = harness.session();
        let file = session.mount("mem").unwrap().create("f").unwrap();
        file.write_all_at(&bytes(round, 2 * PART), 0).unwrap();
        let start = std::sync::Barrier::new(2);
        std::thread::scope(|scope| {
            for thread in 0..2 {
                let (file, session, start) = (&file, &session, &start);
                scope.spawn(move || {
                    let at = thread * PART as u64;
                    let mut expected = bytes(round, 2 * PART)[at as usize..][..PART].to_vec();
                    let mut found = vec![0; PART];
                    start.wait();
                    for step in 0..8 {
                        assert_eq!(file.read_at(&mut found, at).unwrap(), PART);
                        assert_same(&found, &expected, "of its own part");
                        expected = bytes(round + 1000 * (step + 1) + thread, PART);
                        file.write_all_at(&expected, at).unwrap();
                        session.ping().unwrap();
                    }
                    assert_eq!(file.read_at(&mut found, at).unwrap(), PART);
                    assert_same(&found, &expected, "what it wrote last");
                });
            }
        });
        assert_eq!(session.reconnects(), 0);
    }
}

fn threads_of_one_session_each_get_their_own_answers(on: On) {
    const THREADS: u64 = 12;
    let harness = Harness::start(on);
    for background in [Background::None, Background::KeepAlive, Background::Progress] {
        let session = harness.session_with(&Config { background, credits: 16, ..Config::default() });
        let root = session.mount("mem").unwrap();
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (session, root) = (session.clone(), root.clone());
                scope.spawn(move || {
                    let mut options = OpenOptions::new();
                    let file = root
                        .open_with(thread.to_string(), options.read(true).write(true).create(true))
                        .unwrap();
                    for round in 0..on.rounds(60) {
                        let data =
                            bytes(thread << 32 | round, 1 + (thread * 997 + round * 631) as usize % 40_000);
                        if round % 3 == 0 {
                            let mut buffer = session.buffer(data.len()).unwrap();
                            buffer.copy_from_slice(&data);
                            let pending = file.submit_write_at(buffer, round);
                            assert_eq!(pending.wait().result.unwrap(), data.len());
                        } else {
                            file.write_all_at(&data, round).unwrap();
                        }
                        let mut found = vec![0; data.len()];
                        file.read_exact_at(&mut found, round).unwrap();
                        assert_same(&found, &data, "a thread's own data");
                        assert_eq!(
                            root.metadata(thread.to_string()).unwrap().file_id,
                            file.metadata().unwrap().file_id
                        );
                    }
                });
            }
        });
    }
}

fn operations_progress_without_calls_where_a_thread_is_asked_for(on: On) {
    let harness = Harness::start(on);
    let session =
        harness.session_with(&Config { background: Background::Progress, credits: 4, ..Config::default() });
    let watcher = harness.session();
    let file = session.mount("mem").unwrap().create("f").unwrap();
    // More than may be outstanding: the rest is sent only when somebody takes the replies.
    let pendings: Vec<_> =
        (0..100).map(|index| file.submit_write_at(vec![1; 30_000], index * 30_000)).collect();
    let root = watcher.mount("mem").unwrap();
    wait_for(|| root.metadata("f").unwrap().size == 3_000_000);
    for mut pending in pendings {
        wait_for(|| pending.test());
        assert_eq!(pending.wait().result.unwrap(), 30_000);
    }
}

fn operations_of_several_sessions_are_waited_for_together(on: On) {
    let harness = Harness::start(on);
    let sessions: Vec<_> = (0..4).map(|_| harness.session()).collect();
    let mut pendings: Vec<_> =
        sessions.iter().flat_map(|session| (0..10).map(|_| session.submit_ping())).collect();
    let mut count = 0;
    while let Some(place) = wait_any(&mut pendings) {
        pendings.swap_remove(place).wait().unwrap();
        count += 1;
    }
    assert_eq!(count, 40);
    assert!(wait_any::<()>(&mut []).is_none());
}

// [CLI-10] [CLI-76]
fn operations_cancelled_in_flight_leave_the_session_whole(on: On) {
    let harness = Harness::start(on);
    let session = harness.session_with(&Config { credits: 8, ..Config::default() });
    let file = session.mount("mem").unwrap().create("f").unwrap();
    const PIECE: usize = 40_000;
    file.write_all_at(&vec![1; 100 * PIECE], 0).unwrap();
    for round in 2..2 + on.rounds(10).max(2) as u8 {
        let pendings: Vec<_> = (0..100)
            .map(|index| {
                let mut buffer = session.buffer(PIECE).unwrap();
                buffer.fill(round);
                file.submit_write_at(buffer, (index * PIECE) as u64)
            })
            .collect();
        for (index, pending) in pendings.into_iter().enumerate() {
            let ended = if index % 2 == 0 { pending.cancel() } else { pending.wait() };
            assert!(is_all(&ended.buffer, round), "the buffer comes back as it was");
            if index % 2 == 1 {
                assert_eq!(ended.result.unwrap(), PIECE);
            }
        }
    }
    let mut found = vec![0; 100 * PIECE];
    file.read_exact_at(&mut found, 0).unwrap();
    for (index, piece) in found.chunks(PIECE).enumerate() {
        assert!(is_all(piece, piece[0]), "a piece is written whole or not at all");
        assert!(
            index % 2 == 0 || piece[0] == 1 + on.rounds(10).max(2) as u8,
            "what was not cancelled is there"
        );
    }
    assert_eq!(session.statistics().unwrap().protocol_errors, 0);
}
