//! A server with several workers: sessions that live on different loops work on the same files.

use dafs_client::Session;
use dafs_tests::harness::{Harness, On};
use dafs_tests::program::{Program, signal};
use dafs_tests::suite::EXPORTS;
use dafs_tests::{on_sockets, on_three_workers};
use rustix::process::Signal;

use crate::cuts::wait_for;

on_three_workers! {
    appends_on_several_workers_are_whole_and_do_not_overlap,
    counters_of_all_workers_are_told_by_each,
}

dafs_tests::on_verbs_three_workers! {
    appends_on_several_workers_are_whole_and_do_not_overlap,
    counters_of_all_workers_are_told_by_each,
}

on_sockets! {
    program_with_three_workers_serves_by_all_and_drains_all,
    program_runs_each_worker_on_its_cpu_and_tells_of_each,
}

// [STOR-11]
fn appends_on_several_workers_are_whole_and_do_not_overlap(on: On) {
    const SESSIONS: usize = 4;
    const COUNT: usize = 200;
    const SIZE: usize = 700;
    let harness = Harness::start(on);
    for export in EXPORTS {
        let sessions: Vec<_> = (0..SESSIONS).map(|_| harness.session()).collect();
        sessions[0].mount(export).unwrap().create("log").unwrap();
        std::thread::scope(|scope| {
            for (session, mark) in sessions.iter().zip(1u8..) {
                scope.spawn(move || {
                    let file = session
                        .mount(export)
                        .unwrap()
                        .open_with("log", dafs_client::OpenOptions::new().read(true).write(true));
                    let file = file.unwrap();
                    for _ in 0..COUNT {
                        let at = file.append(&[mark; SIZE]).unwrap();
                        let mut found = [0; SIZE];
                        file.read_exact_at(&mut found, at).unwrap();
                        assert_eq!(found, [mark; SIZE], "{export} at {at}");
                    }
                });
            }
        });
        let file = sessions[1].mount(export).unwrap().open("log").unwrap();
        let mut whole = vec![0; SESSIONS * COUNT * SIZE];
        file.read_exact_at(&mut whole, 0).unwrap();
        assert_eq!(file.metadata().unwrap().size, whole.len() as u64);
        let mut counts = [0; SESSIONS + 1];
        for record in whole.chunks(SIZE) {
            assert!(record.iter().all(|byte| *byte == record[0]), "{export}: torn");
            counts[usize::from(record[0])] += 1;
        }
        assert_eq!(counts, [0, COUNT, COUNT, COUNT, COUNT], "{export}");
    }
}

fn counters_of_all_workers_are_told_by_each(on: On) {
    let harness = Harness::start(on);
    let (one, two) = (harness.session(), harness.session());
    let file = one.mount("mem").unwrap().create("f").unwrap();
    file.write_all_at(&[7; 100], 0).unwrap();
    two.mount("mem").unwrap().open("f").unwrap().read_exact_at(&mut [0; 60], 0).unwrap();
    for session in [&one, &two] {
        wait_for(|| {
            let told = session.statistics().unwrap();
            let bytes = (told.bytes_read.iter().sum::<u64>(), told.bytes_written.iter().sum::<u64>());
            let fast = (
                told.bytes_eager[0] + told.bytes_client_initiated[0],
                told.bytes_eager[1] + told.bytes_client_initiated[1],
            );
            told.sessions == 2 && (bytes.0 + fast.0, bytes.1 + fast.1) == (60, 100)
        });
    }
}

/// Nanoseconds that each worker's thread of the server has run.
fn cpu_of_workers(server: u32) -> Vec<u64> {
    let threads = std::fs::read_dir(format!("/proc/{server}/task")).unwrap().map(|task| task.unwrap().path());
    let workers = threads.filter(|task| {
        let name = std::fs::read_to_string(task.join("comm")).unwrap_or_default();
        name.starts_with("dafs-worker-") || task.ends_with(server.to_string())
    });
    let ran = |text: String| text.split(' ').next().unwrap().parse().unwrap();
    workers.map(|task| ran(std::fs::read_to_string(task.join("schedstat")).unwrap())).collect()
}

fn program_with_three_workers_serves_by_all_and_drains_all(on: On) {
    let mut server =
        Program::start_counted(on, &["--workers", "3", "--poll", "event", "--drain-ms", "60000"]);
    let sessions: Vec<Session> = (0..6).map(|_| server.session()).collect();
    let before = cpu_of_workers(server.id());
    assert_eq!(before.len(), 3);
    let files: Vec<_> = sessions.iter().map(|session| session.mount("data").unwrap()).collect();
    for (number, root) in files.iter().enumerate() {
        root.create(format!("f{number}")).unwrap().write_all_at(&[7; 100_000], 0).unwrap();
        // What one has written another reads.
        let mut found = vec![0; 100_000];
        files[(number + 1) % 6].open(format!("f{number}")).unwrap().read_exact_at(&mut found, 0).unwrap();
        assert!(found.iter().all(|byte| *byte == 7));
    }
    let after = cpu_of_workers(server.id());
    assert!(before.iter().zip(&after).all(|(before, after)| after > before), "{before:?} {after:?}");
    wait_for(|| server.metric("dafs_sessions") >= 6.0);
    drop((files, sessions));
    signal(server.id(), Signal::TERM).unwrap();
    assert!(server.wait().success());
}

/// The CPUs that the threads of a server may run on whose names begin so.
fn cpus_of_threads(server: u32, name: &str) -> Vec<String> {
    let threads = std::fs::read_dir(format!("/proc/{server}/task")).unwrap().map(|task| task.unwrap().path());
    let named = threads
        .filter(|task| std::fs::read_to_string(task.join("comm")).is_ok_and(|comm| comm.starts_with(name)));
    // A thread of storage may end.
    named.filter_map(|task| std::fs::read_to_string(task.join("status")).ok()).map(allowed).collect()
}

fn allowed(status: impl AsRef<str>) -> String {
    let line = status.as_ref().lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    line.unwrap().trim().to_owned()
}

fn program_runs_each_worker_on_its_cpu_and_tells_of_each(on: On) {
    let own = allowed(std::fs::read_to_string("/proc/self/status").unwrap());
    let numbers = || own.split([',', '-']).map(|cpu| cpu.parse::<usize>().unwrap());
    let (first, last) = (numbers().min().unwrap(), numbers().max().unwrap());
    let cpus = format!("{first},{last}");
    let mut server = Program::start_counted(
        on,
        &["--workers", "auto", "--worker-cpus", &cpus, "--poll", "event", "--storage-engine", "pool"],
    );
    let sessions = [server.session(), server.session()];
    for (number, session) in sessions.iter().enumerate() {
        let file = session.mount("data").unwrap().create(format!("f{number}")).unwrap();
        file.write_all_at(&[7; 100_000], 0).unwrap();
        file.commit().unwrap();
        // In every directory a thread of storage does that.
        file.truncate(50_000).unwrap();
    }
    let main = std::fs::read_to_string(format!("/proc/{}/status", server.id())).unwrap();
    assert_eq!(allowed(main), first.to_string());
    assert_eq!(cpus_of_threads(server.id(), "dafs-worker-"), [last.to_string()]);
    let disk = cpus_of_threads(server.id(), "dafs-disk-");
    assert!(!disk.is_empty() && disk.iter().all(|cpus| *cpus == own), "{disk:?}, not {own}");
    for worker in 0..2 {
        wait_for(|| server.metric(&format!("dafs_worker_sessions{{worker=\"{worker}\"}}")) >= 1.0);
        wait_for(|| server.metric(&format!("dafs_worker_operations_total{{worker=\"{worker}\"}}")) >= 4.0);
    }
    drop(sessions);
    signal(server.id(), Signal::TERM).unwrap();
    assert!(server.wait().success());
}
