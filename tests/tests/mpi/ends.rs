//! Ranks and servers that die, storage that is full, counts of opens and requests: what a program cannot see of itself.

use std::path::Path;

use dafs_client::Session;
use dafs_server::config::{ExportConfig, ExportKind};
use dafs_tests::harness::{Harness, On};
use dafs_tests::mpi::{Run, Way};

use crate::on_each_way;
use crate::programs::file;

on_each_way! {
    file_is_opened_once_by_any_number_of_ranks,
    server_that_goes_away_ends_every_rank_in_an_error,
    server_that_is_restarted_is_found_again,
    storage_that_is_full_is_an_error_on_every_rank,
    reason_of_a_failed_transfer_is_told_once,
    close_whose_data_is_lost_says_so,
    explanation_tells_how_collective_calls_were_made,
    count_of_a_short_read_comes_from_the_read,
    rank_that_dies_ends_the_run,
    exit_handler_closes_the_file_and_ends_mpi,
    requests_of_bt_io_are_as_many_as_the_method_says,
    view_is_described_when_it_is_set_and_named_by_one_request,
}

/// Requests of some opcodes that the server has answered.
pub(crate) fn requests(session: &Session, names: &[&str]) -> u64 {
    let operations = session.statistics().unwrap().operations;
    let of = operations.iter().filter(|(name, _)| names.contains(&name.as_str()));
    of.map(|(_, count)| *count).sum()
}

// [MPI-4]
fn file_is_opened_once_by_any_number_of_ranks(way: Way, on: On) {
    let harness = Harness::start(on);
    let session = harness.session();
    let opens = |ranks| {
        let before = requests(&session, &["Open"]);
        let run = Run::new(way, ranks, "kill").arg("collective").arg(file(&harness, on));
        run.args(&["--iterations", "1"]).run().passed();
        requests(&session, &["Open"]) - before
    };
    assert_eq!([opens(1), opens(4)], [1, 1]);
}

/// Waits until a program has made the file that says that it is in the middle of things.
fn await_file(path: &Path) {
    while !path.exists() {
        std::thread::yield_now();
    }
}

/// Ranks that run the loops.
const RANKS: usize = 3;
/// What a rank says that met an error, and one that met none.
const ERROR: &str = ": error ";
const NO_ERROR: &str = ": no error in ";
/// What it says where a server was restarted before the data of its last writes was durable.
const LOST: &str = ": error MPI_ERR_IO of sync ";

/// Runs the loops, and does something to the server in the middle of each. Every rank says a line with these words in it, and nobody one
/// with the others.
fn loops_while(way: Way, on: On, words: &[&str], [says, never]: [&str; 2], disturb: impl Fn(&mut Harness)) {
    for case in ["independent", "collective", "shared"] {
        let state = tempfile::tempdir().unwrap();
        // Over a restart the ranks keep their locks: else one may be in doubt whether it has moved the shared pointer.
        let mut harness =
            Harness::start_with(on, |config| config.state_file = Some(state.path().join("state")));
        let ready = harness.scratch().join("ready");
        let run = Run::new(way, 3, "kill").arg(case).arg(file(&harness, on)).arg("--ready").arg(&ready);
        let run = words.iter().fold(run, |run, word| run.arg(word));
        // One that comes back may take long on a busy machine; the others are waited for in vain.
        let run = run.env("DAFS_MPI_RECONNECT_TIME_MS", if says == NO_ERROR { "60000" } else { "2000" });
        let done = run.run_while(|| {
            await_file(&ready);
            disturb(&mut harness);
        });
        let [said, others] = [says, never].map(|words| lines_of(&done.passed().stdout, words));
        // In the loop of shared pointers one rank's error stops all: the others may have been done with that call.
        let is_said = if case == "shared" && says == ERROR { said > 0 } else { said == RANKS };
        // What was not durable when the server ended may be lost, and the next sync says so.
        let of_sync = if says == NO_ERROR { lines_of(&done.stdout, LOST) } else { 0 };
        assert!((is_said && others == 0) || of_sync == RANKS, "{case}: {done:?}");
    }
}

/// Lines of ranks with these words in them.
fn lines_of(said: &str, words: &str) -> usize {
    said.lines().filter(|line| line.starts_with("rank ") && line.contains(words)).count()
}

// [MPI-7]
fn server_that_goes_away_ends_every_rank_in_an_error(way: Way, on: On) {
    loops_while(way, on, &["--keep", "--each"], [ERROR, NO_ERROR], Harness::stop);
}

// [MPI-65]
fn server_that_is_restarted_is_found_again(way: Way, on: On) {
    loops_while(way, on, &["--iterations", "12", "--each"], [NO_ERROR, ERROR], Harness::restart);
}

// [MPI-7]
fn storage_that_is_full_is_an_error_on_every_rank(way: Way, on: On) {
    let harness = Harness::start_with(on, |config| {
        config.exports.push(ExportConfig::new("small", ExportKind::Memory { size_max: 8 << 20 }));
    });
    let name = file(&harness, on).replace("/data/", "/small/");
    for case in ["independent", "collective"] {
        let run = Run::new(way, 3, "kill").arg(case).arg(&name).args(&["--grow", "--each"]).run();
        assert_eq!(lines_of(&run.passed().stdout, ": error MPI_ERR_NO_SPACE "), RANKS, "{run:?}");
    }
}

// [MPI-93] Whatever fails of one file, and however often.
fn reason_of_a_failed_transfer_is_told_once(way: Way, on: On) {
    let mut harness = Harness::start(on);
    let ready = harness.scratch().join("ready");
    let run = Run::new(way, 2, "failures").arg("transfers").arg(file(&harness, on)).arg(&ready);
    let done = run.env("DAFS_MPI_RECONNECT_TIME_MS", "1000").run_while(|| {
        await_file(&ready);
        harness.stop();
        std::fs::remove_file(&ready).unwrap();
    });
    let said = |words: &str| done.stderr.lines().filter(|line| line.contains(words)).count();
    let transfers = said("adio-dafs: cannot write") + said("adio-dafs: cannot read");
    assert_eq!(transfers, 2, "once a rank: {done:?}");
    assert!(done.stderr.contains("attempts to connect again"), "{done:?}");
    done.passed();
}

// [MPI-31] [MPI-96] What was written and not synced is lost with the server.
fn close_whose_data_is_lost_says_so(way: Way, on: On) {
    let mut harness = Harness::start(on);
    let ready = harness.scratch().join("ready");
    let run = Run::new(way, 2, "failures").arg("close").arg(file(&harness, on)).arg(&ready);
    let done = run.run_while(|| {
        await_file(&ready);
        harness.restart();
        std::fs::remove_file(&ready).unwrap();
    });
    done.passed();
    // OMPIO has no way to tell it.
    let expected = if way == Way::Romio { "close: MPI_ERR_IO" } else { "close: MPI_SUCCESS" };
    assert_eq!(done.stdout.lines().filter(|line| line.contains(expected)).count(), 2, "{done:?}");
    let told = done.stderr.lines().filter(|line| line.contains("adio-dafs: cannot sync"));
    assert_eq!(told.count(), 1, "{done:?}");
}

// [MPI-94] Four ranks, so that OMPIO exchanges too.
fn explanation_tells_how_collective_calls_were_made(way: Way, on: On) {
    let harness = Harness::start(on);
    let explained = |collective: &str| {
        let run = Run::new(way, 4, "failures").arg("collective").arg(file(&harness, on));
        let run = run.env("DAFS_MPI_EXPLAIN", "true").env("DAFS_MPI_COLLECTIVE", collective);
        let done = run.env("DAFS_MPI_MEMORY", "adio").run();
        done.passed().stderr.clone()
    };
    for (collective, words) in [
        ("two_phase", "exchanged, by two-phase I/O of"),
        ("independent", "not exchanged, each rank moved its own: dafs_collective says so"),
        ("server", "not exchanged, by views in the server: dafs_collective says so"),
    ] {
        let said = explained(collective);
        for direction in ["read", "write"] {
            let line = format!("collective {direction}: 1 calls, {words}");
            assert!(said.contains(&line), "{collective}: {line} in {said}");
        }
        // What became of the memory of the file, whatever the session does by default.
        let is_registered = said.contains("its memory was registered ");
        assert!(is_registered && !said.contains("direct, bounced"), "{collective}: {said}");
    }
}

// [MPI-79] A collective read tells each rank what it found without a question about the file's size, and a write asks none either.
fn count_of_a_short_read_comes_from_the_read(way: Way, on: On) {
    let harness = Harness::start(on);
    let session = harness.session();
    let run = |program, cases: &str, collective: &str| {
        let before = requests(&session, &["Getattr"]);
        let run = Run::new(way, 4, program).arg(cases).arg(file(&harness, on));
        run.env("DAFS_MPI_COLLECTIVE", collective).run().passed();
        // Each rank asks once whether the export has data servers.
        assert_eq!(requests(&session, &["Getattr"]) - before, 4, "{program} {collective}");
    };
    for collective in ["two_phase", "independent", "server"] {
        run("collective", "end_of_file,sparse_columns", collective);
        run("positions", "end_of_file_collective", collective);
    }
}

fn rank_that_dies_ends_the_run(way: Way, on: On) {
    let harness = Harness::start(on);
    for case in ["independent", "collective", "shared"] {
        let run = Run::new(way, 3, "kill").arg(case).arg(file(&harness, on));
        let done = run.args(&["--die", "1", "5", "--keep"]).run();
        // By that rank, and not by an alarm of one that waited for it, nor by one that failed before.
        let is_of_the_dead = done.stderr.contains("Exit code:    9") && !done.stderr.contains("no end after");
        assert!(is_of_the_dead && !done.stdout.contains("FAILED"), "{done:?}");
    }
    // The server is none the worse for it.
    Run::new(way, 2, "collective").arg("equal").arg(file(&harness, on)).run().passed();
}

// [MPI-31]
fn exit_handler_closes_the_file_and_ends_mpi(way: Way, on: On) {
    for how in ["close", "leave"] {
        let harness = Harness::start_with(on, |config| config.lease_ms = 3_600_000);
        let session = harness.session();
        Run::new(way, 2, "late").arg(how).arg(file(&harness, on)).run().passed();
        let data = std::fs::read(harness.data().join("f")).unwrap();
        assert!(data == [[b'a'; 2000], [b'b'; 2000]].concat(), "{how}");
        // ROMIO does not close what is left open.
        if how == "close" || way == Way::Ompio {
            assert_eq!(requests(&session, &["Commit"]), 2, "{how}");
        }
        // The server is told that the sessions are over: it would keep those whose connections break.
        while session.statistics().unwrap().sessions > 1 {
            std::thread::yield_now();
        }
    }
}

// [MPI-11] [MPI-16] BT-IO, class A, on 4 ranks: 10 dumps written and read, 2,048 pieces of 1,280 bytes each a rank.
fn requests_of_bt_io_are_as_many_as_the_method_says(way: Way, on: On) {
    let harness = Harness::start(on);
    let session = harness.session();
    let count = |hints: &[&str], names: &[&str]| {
        let before = requests(&session, names);
        let run = Run::new(way, 4, "btio").arg("independent").arg(file(&harness, on));
        let run = hints.iter().fold(run, |run, hint| run.arg("--hint").arg(hint));
        run.run().passed();
        requests(&session, names) - before
    };
    // Of the writes alone: reads are also made to look at the file. A list of one segment goes as a plain write.
    let writes = ["WriteList", "Write"];
    assert_eq!(count(&["dafs_list_max=128"], &writes), 1280 / 2);
    // As the bounds of each call's file type counted where it was measured first.
    let bounds = ["dafs_list_max=128", "dafs_list_bounds=true"];
    assert_eq!(count(&bounds, &writes), 1360 / 2);
    if on == On::Shm {
        assert_eq!(count(&["dafs_method=multiple"], &writes), 163_840 / 2);
    }
}

// [MPI-73] [MPI-76] 30,000 pieces a rank, written once and read once. Two of the three file types that each rank sets are new to it.
fn view_is_described_when_it_is_set_and_named_by_one_request(way: Way, on: On) {
    let harness = Harness::start(on);
    let session = harness.session();
    Run::new(way, 3, "hints").arg("dafs_view").arg(file(&harness, on)).arg("--expect-dafs").run().passed();
    let lists = requests(&session, &["ReadList", "WriteList"]);
    let [set, written] = ["ViewSet", "WriteView"].map(|name| requests(&session, &[name]));
    // Over shared memory what is dense is read with its gaps.
    let read = requests(&session, &["ReadView", "Read"]);
    assert_eq!([set, written, read, lists], [6, 3, 3, 0]);
}
