//! The programs of `tests/mpi`, each verified by content, on one to four ranks.

use std::fs::{File, Permissions};
use std::os::unix::fs::PermissionsExt;

use dafs_server::access::IdentityMapping;
use dafs_tests::faulty::{Fault, Kind};
use dafs_tests::harness::{Harness, On};
use dafs_tests::mpi::{Run, Way};

use crate::ends::requests;
use crate::{on_each_way, ranks_of};

on_each_way! {
    views,
    views_in_the_server,
    views_write_the_same_file_as_lists_and_local_storage,
    view_that_the_server_refuses_goes_by_lists,
    positions,
    random,
    contiguous,
    read_that_came_to_the_end_stops_there_though_the_file_grows,
    collective,
    collective_of_two,
    nonblocking,
    untouched,
    shared,
    shared_on_two_nodes,
    ordered_calls_and_appending_opens_move_the_pointer_once,
    shared_of_a_file_in_a_read_only_export,
    shared_of_a_file_in_a_directory_that_nobody_may_write,
    errors,
    places,
    atomic,
    atomic_in_one_piece,
    datarep,
    hints,
    ranks,
    sync_of_a_file_that_is_only_read,
    threads,
    name_goes_nowhere_by_a_prefix_that_cannot_be_read,
    name_that_one_rank_has_on_dafs_is_an_error_on_all,
    name_that_leads_to_two_servers_is_an_error_that_says_so,
    delete_on_close_removes_the_file_that_was_opened,
}

/// The name of a file on the server, as a program gives it.
pub(crate) fn file(harness: &Harness, on: On) -> String {
    match on {
        On::Shm => format!("{}:/data/f", harness.url()),
        _ => format!("{}/data/f", harness.url()),
    }
}

/// Runs cases of a program: names and patterns, or `all`, but not those of `except`.
fn run(way: Way, on: On, ranks: &[u32], program: &str, cases: &str, except: &str) {
    let harness = Harness::start(on);
    for ranks in ranks {
        let run = Run::new(way, *ranks, program).arg(cases).arg(file(&harness, on)).arg("--expect-dafs");
        let run = if except.is_empty() { run } else { run.args(&["--except", except]) };
        run.run().passed();
        // What a case made it took away again.
        let left = std::fs::read_dir(harness.data()).unwrap().count();
        assert_eq!(left, 0, "{program} left files behind");
    }
}

/// All cases.
fn run_all(way: Way, on: On, program: &str, except: &str) {
    run(way, on, &[ranks_of(way, on)], program, "all", except);
}

/// All cases of one rank, and some of several, which take long where there are fewer processors: each library does both, one over either
/// transport.
fn run_some(way: Way, on: On, program: &str, cases: &str) {
    match (way, on) {
        (Way::Ompio, On::Tcp) => run(way, on, &[1], program, "all", ""),
        (Way::Ompio, _) => run(way, on, &[2], program, cases, ""),
        (Way::Romio, On::Tcp) => run(way, on, &[4], program, cases, ""),
        (Way::Romio, _) => run(way, on, &[1], program, "all", ""),
    }
}

// [MPI-78]
fn views(way: Way, on: On) {
    run_some(way, on, "views", "vector,resized,interleaved*,lower_bound*,many_pieces,darray_cyclic_k");
}

// [MPI-10] [MPI-73] [MPI-74] Of what one rank does and what all do together.
fn views_in_the_server(way: Way, on: On) {
    let harness = Harness::start(on);
    let session = harness.session();
    let run = |ranks, program, cases: &str, variable, value| {
        let run = Run::new(way, ranks, program).arg(cases).arg(file(&harness, on)).arg("--expect-dafs");
        run.env(variable, value).run().passed();
    };
    // Those without data take part.
    run(2, "collective", "nobody", "DAFS_MPI_COLLECTIVE", "server");
    assert!(requests(&session, &["WriteView"]) > 0);
    // Each library does all of it, one half over either transport.
    let half = match (way, on) {
        (Way::Ompio, On::Tcp) => (2, "collective", "all", "DAFS_MPI_COLLECTIVE", "server"),
        (Way::Ompio, _) => (2, "views", "all", "DAFS_MPI_METHOD", "view"),
        (Way::Romio, On::Tcp) => (1, "views", "all", "DAFS_MPI_METHOD", "view"),
        (Way::Romio, _) => (3, "collective", "all", "DAFS_MPI_COLLECTIVE", "server"),
    };
    let (ranks, program, cases, variable, value) = half;
    run(ranks, program, cases, variable, value);
    run(2, "random", "independent,nonblocking", "DAFS_MPI_METHOD", "view");
    let [set, written, read] = ["ViewSet", "WriteView", "ReadView"].map(|name| requests(&session, &[name]));
    assert!(set > 10 && written > 50 && read > 50, "{set} {written} {read}");
}

// [MPI-10]
fn views_write_the_same_file_as_lists_and_local_storage(way: Way, on: On) {
    let harness = Harness::start(on);
    let session = harness.session();
    // Each number by one library over one transport: all of them take minutes.
    let ranks = match (way, on == On::Tcp) {
        (Way::Ompio, true) => 3,
        (Way::Ompio, false) => 1,
        (_, true) => 4,
        (_, false) => 2,
    };
    // One over either transport, for the same reason.
    let case = if on == On::Tcp { "nested" } else { "many_pieces" };
    let written = |name: &str, variable: &str, value: &str| {
        let run = Run::new(way, ranks, "views").arg(case).arg(name).arg("--keep");
        run.env(variable, value).run().passed();
    };
    let of_data = || std::fs::read(harness.data().join("f")).unwrap();
    let local = harness.scratch().join("local");
    written(local.to_str().unwrap(), "DAFS_MPI_METHOD", "view");
    written(&file(&harness, on), "DAFS_MPI_METHOD", "list");
    assert!(of_data() == std::fs::read(local).unwrap(), "{case} by lists on {ranks} ranks");
    let lists = of_data();
    for (variable, value) in [("DAFS_MPI_METHOD", "view"), ("DAFS_MPI_COLLECTIVE", "server")] {
        std::fs::remove_file(harness.data().join("f")).unwrap();
        written(&file(&harness, on), variable, value);
        assert!(of_data() == lists, "{case} with {variable}={value} on {ranks} ranks");
    }
    assert!(requests(&session, &["WriteView"]) > 0, "they went through views on {ranks} ranks");
}

// [MPI-77]
fn view_that_the_server_refuses_goes_by_lists(way: Way, on: On) {
    let harness = Harness::start_with(on, |config| config.limits.views_size_max = 1);
    let session = harness.session();
    let run = Run::new(way, 2, "views").arg("vector,many_pieces").arg(file(&harness, on));
    run.env("DAFS_MPI_COLLECTIVE", "server").run().passed();
    assert!(requests(&session, &["WriteList"]) > 0 && requests(&session, &["ViewSet"]) > 0);
    assert_eq!(requests(&session, &["WriteView", "ReadView"]), 0);
}

fn positions(way: Way, on: On) {
    run_all(way, on, "positions", "");
}

fn random(way: Way, on: On) {
    run_some(way, on, "random", "independent,nonblocking");
}

fn contiguous(way: Way, on: On) {
    run_all(way, on, "contiguous", "");
}

// [MPI-13] Open MPI cuts what is larger than this into reads that it makes one after the other.
fn read_that_came_to_the_end_stops_there_though_the_file_grows(way: Way, on: On) {
    let (harness, faults) = Harness::start_faulty(on, |_| {});
    for case in ["end_of_file_by_pointer", "end_of_file_by_pointer_of_all"] {
        let run = Run::new(way, 1, "contiguous").arg(case).arg(file(&harness, on));
        let run = run.env("OMPI_MCA_io_ompio_cycle_buffer_size", "4096");
        faults.next(Kind::Read, Fault::Late, 1);
        let done = run.env("DAFS_MPI_COLLECTIVE", "independent").run_while(|| {
            faults.wait_for_held(1);
            let grows = File::options().write(true).open(harness.data().join("f")).unwrap();
            grows.set_len(20_000).unwrap();
            faults.release();
        });
        done.passed();
    }
}

// [MPI-80]
fn collective(way: Way, on: On) {
    run_all(way, on, "collective", "");
}

// [MPI-79] [MPI-82] Of two ranks over either transport: what ranks meet at the end of the file.
fn collective_of_two(way: Way, on: On) {
    let harness = Harness::start(on);
    let run = || {
        let run = Run::new(way, 2, "collective").arg("end_of_file_mixed,gaps_behind_the_end");
        run.arg(file(&harness, on)).arg("--expect-dafs")
    };
    run().run().passed();
    if way == Way::Ompio {
        // It reads before it writes, as ROMIO's exchange does. Memory that is small was used before.
        let run = run().env("OMPI_MCA_fcoll", "two_phase");
        run.env("OMPI_MCA_io_ompio_bytes_per_agg", "65536").run().passed();
    }
}

fn nonblocking(way: Way, on: On) {
    run_all(way, on, "nonblocking", "");
}

// [MPI-91]
fn untouched(way: Way, on: On) {
    run_all(way, on, "untouched", "");
}

// [MPI-64] [MPI-67] [MPI-71]
fn shared(way: Way, on: On) {
    run_all(way, on, "shared", "");
}

// [MPI-64]
fn shared_on_two_nodes(way: Way, on: On) {
    let harness = Harness::start(on);
    let session = harness.session();
    let done = Run::on_nodes(way, 2, 4, "shared").arg("all").arg(file(&harness, on)).run();
    assert!(done.passed().stdout.contains("nodes: 2"), "{done:?}");
    let operations = session.statistics().unwrap().operations;
    assert!(operations.iter().any(|(name, count)| name == "Lock" && *count > 100), "{operations:?}");
    Run::on_nodes(way, 2, 4, "atomic").arg("all").arg(file(&harness, on)).run().passed();
    assert_eq!(std::fs::read_dir(harness.data()).unwrap().count(), 0);
}

// [MPI-69]
fn ordered_calls_and_appending_opens_move_the_pointer_once(way: Way, on: On) {
    let harness = Harness::start(on);
    let session = harness.session();
    let run = Run::new(way, 4, "shared").arg("ordered,append").arg(file(&harness, on));
    let done = run.env("DAFS_MPI_EXPLAIN", "true").run();
    // 40 calls, a seek between them, and the position once on each rank.
    assert!(done.passed().stderr.contains("pointer_moves 45"), "{done:?}");
    // Two opens at the end, and each rank asks once whether the export has data servers. Ranks that asked each for itself where the end is
    // would begin apart where the file grows meanwhile.
    assert_eq!(requests(&session, &["Getattr"]), 2 + 4);
}

// [MPI-68] [MPI-72] [MPI-78] [MPI-79] Data that nobody may change is shared out by the MPI library's pointer, on one node; on two it is an
// error for all.
fn shared_of_a_file_in_a_read_only_export(way: Way, on: On) {
    let harness = Harness::start_with(on, |config| config.exports[0].read_only = true);
    std::fs::write(harness.data().join("f"), (0..=u8::MAX).cycle().take(7000).collect::<Vec<_>>()).unwrap();
    let words = |run: Run| run.arg("given").arg(file(&harness, on)).arg("--keep");
    words(Run::new(way, 3, "pointer")).run().passed();
    let done = words(Run::on_nodes(way, 2, 3, "pointer")).arg("--refused").run();
    assert!(done.passed().stderr.contains("cannot make the shared file pointer of"), "{done:?}");
}

// [MPI-68]
fn shared_of_a_file_in_a_directory_that_nobody_may_write(way: Way, on: On) {
    let is_root = rustix::process::geteuid().is_root();
    let harness = Harness::start_with(on, |config| {
        if is_root {
            config.exports[0].squash = IdentityMapping::Fixed { uid: 1000, gid: 1000 };
        }
    });
    let [path, directory] = [harness.data().join("f"), harness.data()];
    std::fs::write(&path, []).unwrap();
    std::fs::set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
    std::fs::set_permissions(&directory, Permissions::from_mode(0o555)).unwrap();
    for collective in ["two_phase", "independent", "server"] {
        let run = Run::new(way, 3, "pointer").arg("writable").arg(file(&harness, on)).arg("--keep");
        run.env("DAFS_MPI_COLLECTIVE", collective).run().passed();
        let written = std::fs::read(&path).unwrap();
        assert!(written == (0..=u8::MAX).cycle().take(6000).collect::<Vec<_>>());
    }
    std::fs::set_permissions(&directory, Permissions::from_mode(0o755)).unwrap();
}

// [MPI-7]
fn errors(way: Way, on: On) {
    // OMPIO aborts on names of more than 255 bytes before it asks a component.
    run_all(way, on, "errors", if way == Way::Ompio { "long_name,long_path" } else { "" });
}

// [MPI-7] [MPI-83] [MPI-90]
fn places(way: Way, on: On) {
    // ROMIO refuses an offset on one rank alone.
    run_all(way, on, "places", if way == Way::Romio { "offset_of_one" } else { "" });
}

// [MPI-60] [MPI-62] [MPI-70]
fn atomic(way: Way, on: On) {
    run_all(way, on, "atomic", "");
}

// [MPI-60] Open MPI cuts what is larger than this, and would lock each piece by itself.
fn atomic_in_one_piece(way: Way, on: On) {
    let harness = Harness::start(on);
    let run =
        Run::new(way, 3, "atomic").arg("overlapping_writes,contiguous,collective").arg(file(&harness, on));
    run.env("OMPI_MCA_io_ompio_cycle_buffer_size", "4096").run().passed();
}

// [MPI-81]
fn datarep(way: Way, on: On) {
    // ROMIO takes "internal" and says "native".
    run_all(way, on, "datarep", if way == Way::Romio { "internal" } else { "" });
}

// [MPI-7] [MPI-20] [MPI-51] [MPI-52] [MPI-95]
fn hints(way: Way, on: On) {
    // Open MPI shows what the program set until the next call on the file.
    run_all(way, on, "hints", if way == Way::Ompio { "dafs_memory_unknown" } else { "" });
}

fn ranks(way: Way, on: On) {
    run_all(way, on, "ranks", "");
}

// [MPI-32]
fn sync_of_a_file_that_is_only_read(way: Way, on: On) {
    run(way, on, &[2], "ranks", "sync_read_only", "");
}

fn threads(way: Way, on: On) {
    run_all(way, on, "threads", "");
}

// [MPI-3]
fn name_goes_nowhere_by_a_prefix_that_cannot_be_read(way: Way, on: On) {
    let harness = Harness::start(on);
    let directory = harness.scratch();
    let prefix = format!("{}=tcp://127.0.0.1:1/data", directory.display());
    let run = Run::new(way, 2, "names").arg("unreadable").arg(directory.join("f"));
    let done = run.env("DAFS_MPI_PREFIX", prefix).run();
    assert!(done.passed().stderr.contains("cannot use DAFS_MPI_PREFIX"), "{done:?}");
    assert!(!directory.join("f").exists());
}

// [MPI-7]
fn name_that_one_rank_has_on_dafs_is_an_error_on_all(way: Way, on: On) {
    let harness = Harness::start(on);
    let directory = harness.scratch();
    let name = file(&harness, on);
    let prefix = format!("{}={}", directory.display(), name.strip_suffix("/f").unwrap());
    let run = Run::new(way, 3, "names").arg("of_one_rank").arg(directory.join("f"));
    let done = run.env("DAFS_MPI_PREFIX", prefix).run();
    assert!(done.passed().stderr.contains("give all of them the same DAFS_MPI_PREFIX"), "{done:?}");
    assert!(!directory.join("f").exists() && !harness.data().join("f").exists());
}

// [MPI-7] [MPI-9]
fn name_that_leads_to_two_servers_is_an_error_that_says_so(way: Way, on: On) {
    let (first, other) = (Harness::start(on), Harness::start(on));
    for found in ["no such file here", "another file here"] {
        let run = Run::new(way, 3, "names").arg("of_two_servers").arg("dafs:/data/f");
        let done = run.env("DAFS_ADDRESS", first.url()).env("OTHER_ADDRESS", other.url()).run();
        let said = done.passed().stderr.lines().filter(|line| line.contains(found));
        assert_eq!(said.filter(|line| line.contains("the same server on all nodes")).count(), 1, "{done:?}");
        std::fs::write(other.data().join("f"), []).unwrap();
    }
}

// [MPI-17]
fn delete_on_close_removes_the_file_that_was_opened(way: Way, on: On) {
    let harness = Harness::start(on);
    let directory = harness.scratch();
    for parent in [&harness.data(), directory] {
        std::fs::create_dir(parent.join("below")).unwrap();
    }
    let name = file(&harness, on);
    let prefix = format!("{}={}", directory.display(), name.strip_suffix("/f").unwrap());
    let run = Run::new(way, 2, "names").arg("directory_changes").arg(directory.join("f"));
    run.env("DAFS_MPI_PREFIX", prefix).run().passed();
}
