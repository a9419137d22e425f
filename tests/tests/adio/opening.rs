//! One open for all ranks, access modes, errors by their classes.

use std::ffi::OsStr;
use std::net::TcpListener;
use std::sync::Arc;

use adio_dafs::error::Class;
use adio_dafs::file::{AccessMode, Request, delete};
use adio_dafs::layout::Type;
use dafs_client::{Direction, Status};
use dafs_tests::faulty::{Fault, Kind};
use dafs_tests::harness::{Harness, On};
use dafs_tests::on_sockets;
use dafs_tests::suite::bytes;

use crate::support::{
    RDONLY, RDWR, RDWR_CREATE, WRONLY, by_view, counter, name, open, opening, requests, run, segment,
};

on_sockets! {
    ranks_that_join_have_the_file_open_with_one_open,
    rank_joins_by_path_when_the_token_is_of_no_use,
    rank_whose_name_leads_to_another_server_is_told_so,
    ticket_that_is_none_is_refused,
    errors_have_their_classes,
    file_is_used_as_its_access_mode_says,
    sizes_are_set_and_preallocated,
    preallocation_where_space_cannot_be_set_aside_cuts_nothing,
    hints_are_shown_with_counters,
    session_that_ended_is_replaced_at_the_next_open,
    view_is_described_once_and_may_be_refused,
    view_that_a_restarted_server_has_no_room_for_goes_by_lists,
    test_does_not_wait_for_a_thread_describing_a_view,
    submit_describes_no_view_and_waits_for_nobody_who_does,
    file_is_opened_by_a_session_from_before_a_restart,
    file_opens_in_an_export_moved_by_a_restart,
    file_that_is_closed_is_closed_at_the_server_at_once,
}

// [MPI-4]
fn ranks_that_join_have_the_file_open_with_one_open(on: On) {
    let harness = Harness::start(on);
    let session = harness.session();
    let name = name(&harness, on, "f");
    let first = open(&name, &[]);
    let ticket = first.share().unwrap();
    let others: Vec<_> = (0..3).map(|_| Arc::new(opening(&name, RDWR, &[]).join(&ticket).unwrap())).collect();
    assert_eq!(requests(&session, &["Open"]), 1);
    // The first may close: the others go on.
    first.finish().unwrap();
    drop(first);
    for (rank, file) in others.iter().enumerate() {
        let mut data = bytes(rank as u64, 10_000);
        assert_eq!(run(file, Direction::Write, &[segment(&mut data, rank as u64 * 10_000)]).unwrap(), 10_000);
    }
    let mut found = vec![0; 30_000];
    assert_eq!(run(&others[2], Direction::Read, &[segment(&mut found, 0)]).unwrap(), 30_000);
    let expected: Vec<u8> = (0..3).flat_map(|rank| bytes(rank, 10_000)).collect();
    assert!(found == expected);
}

// [MPI-5] [MPI-9]
fn rank_joins_by_path_when_the_token_is_of_no_use(on: On) {
    let mut harness = Harness::start(on);
    let name = name(&harness, on, "f");
    let first = open(&name, &[]);
    let mut data = bytes(1, 100);
    run(&first, Direction::Write, &[segment(&mut data, 0)]).unwrap();
    let ticket = first.share().unwrap();
    // A restarted server knows no tokens.
    harness.restart();
    let joined = opening(&name, RDWR, &[]).join(&ticket).unwrap();
    let mut found = vec![0; 100];
    assert_eq!(run(&joined, Direction::Read, &[segment(&mut found, 0)]).unwrap(), 100);
    assert_eq!(found, data);
    // Another file under the name is not the one.
    std::fs::write(harness.data().join("other"), b"other").unwrap();
    std::fs::rename(harness.data().join("other"), harness.data().join("f")).unwrap();
    let ticket = {
        let old = open(&name, &[]);
        let ticket = old.share().unwrap();
        std::fs::write(harness.data().join("third"), b"third").unwrap();
        std::fs::rename(harness.data().join("third"), harness.data().join("f")).unwrap();
        harness.restart();
        ticket
    };
    assert_eq!(opening(&name, RDWR, &[]).join(&ticket).unwrap_err().class, Class::NoSuchFile);
}

// [MPI-9] As an address does that names the host that a rank is on, or a socket there.
fn rank_whose_name_leads_to_another_server_is_told_so(on: On) {
    let (first, other) = (Harness::start(on), Harness::start(on));
    let ticket = open(&name(&first, on, "f"), &[]).share().unwrap();
    let there = name(&other, on, "f");
    for found in ["no such file here", "another file here"] {
        let error = opening(&there, RDWR, &[]).join(&ticket).unwrap_err();
        assert_eq!(error.class, Class::NoSuchFile, "{error}");
        assert!(error.message.contains(found), "{error}");
        assert!(error.message.contains("must lead to the same server on all nodes"), "{error}");
        open(&there, &[]);
    }
}

fn ticket_that_is_none_is_refused(on: On) {
    let harness = Harness::start(on);
    let (name, other) = (name(&harness, on, "f"), name(&harness, on, "g"));
    let ticket = open(&name, &[]).share().unwrap();
    open(&other, &[]);
    for len in 0..ticket.len() {
        let error = opening(&name, RDWR, &[]).join(&ticket[..len]).unwrap_err();
        assert_eq!(error.class, Class::Argument, "{error}");
    }
    for seed in 0..200 {
        let garbage = bytes(seed, seed as usize);
        assert_eq!(opening(&name, RDWR, &[]).join(&garbage).unwrap_err().class, Class::Argument);
    }
    assert_eq!(opening(&other, RDWR, &[]).join(&ticket).unwrap_err().class, Class::BadFile);
}

fn errors_have_their_classes(on: On) {
    let harness = Harness::start(on);
    let class = |path: &str, mode| opening(&name(&harness, on, path), mode, &[]).open().unwrap_err().class;
    std::fs::create_dir(harness.data().join("dir")).unwrap();
    std::fs::write(harness.data().join("there"), b"x").unwrap();
    assert_eq!(class("missing", RDWR), Class::NoSuchFile);
    assert_eq!(class("missing/f", RDWR_CREATE), Class::NoSuchFile);
    assert_eq!(class("there", RDWR_CREATE | 64), Class::FileExists);
    assert_eq!(class("there/f", RDWR_CREATE), Class::BadFile);
    assert_eq!(class("dir", RDONLY), Class::BadFile);
    assert_eq!(class("dir", RDWR), Class::BadFile);
    assert_eq!(class(&"n".repeat(300), RDWR_CREATE), Class::BadFile);
    let no_export = format!("{}/none/f", name(&harness, on, "f").trim_end_matches("/data/f"));
    assert_eq!(opening(&no_export, RDWR_CREATE, &[]).open().unwrap_err().class, Class::BadFile);
    assert_eq!(delete(name(&harness, on, "missing").as_ref()).unwrap_err().class, Class::NoSuchFile);
    delete(name(&harness, on, "there").as_ref()).unwrap();
    assert_eq!(class("there", RDWR), Class::NoSuchFile);
    assert!(AccessMode::new(RDONLY | 1).is_err());
}

fn file_is_used_as_its_access_mode_says(on: On) {
    let harness = Harness::start(on);
    let name = name(&harness, on, "f");
    let mut data = bytes(1, 10);
    let writes = opening(&name, WRONLY | 1, &[]).open().unwrap();
    let reads = opening(&name, RDONLY, &[]).open().unwrap();
    let io = |file, direction| run(file, direction, &[segment(&mut data.clone(), 0)]);
    assert_eq!(io(&writes, Direction::Write).unwrap(), 10);
    assert_eq!(io(&reads, Direction::Read).unwrap(), 10);
    assert_eq!(io(&writes, Direction::Read).unwrap_err().class, Class::Access);
    assert_eq!(io(&reads, Direction::Write).unwrap_err().class, Class::ReadOnly);
    assert_eq!(reads.resize(0).unwrap_err().class, Class::ReadOnly);
    assert_eq!(reads.preallocate(100).unwrap_err().class, Class::ReadOnly);
    run(&reads, Direction::Read, &[segment(&mut data, 0)]).unwrap();
}

fn sizes_are_set_and_preallocated(on: On) {
    let harness = Harness::start(on);
    let file = open(&name(&harness, on, "f"), &[]);
    assert_eq!(file.size().unwrap(), 0);
    file.resize(5 << 30).unwrap();
    assert_eq!(file.size().unwrap(), 5 << 30);
    file.resize(10).unwrap();
    file.preallocate(0).unwrap();
    assert_eq!(file.size().unwrap(), 10);
    file.preallocate(100_000).unwrap();
    assert_eq!(file.size().unwrap(), 100_000);
    // It never shrinks.
    file.preallocate(5).unwrap();
    assert_eq!(file.size().unwrap(), 100_000);
    file.sync().unwrap();
}

/// As on a file system without fallocate().
fn preallocation_where_space_cannot_be_set_aside_cuts_nothing(on: On) {
    let (harness, faults) = Harness::start_faulty(on, |_| {});
    let file = open(&name(&harness, on, "f"), &[]);
    let other = open(&name(&harness, on, "f"), &[]);
    let unsupported = || faults.next(Kind::Other, Fault::Fail(Status::NOT_SUPPORTED), 1);
    for size in [5000, 4000] {
        unsupported();
        file.preallocate(size).unwrap();
        assert_eq!(file.size().unwrap(), 5000);
    }
    // Its size was looked at, and then the file grows beyond what it is to be.
    unsupported();
    faults.next(Kind::Other, Fault::Pass, 1);
    faults.next(Kind::Other, Fault::Hold, 1);
    std::thread::scope(|scope| {
        let preallocated = scope.spawn(|| file.preallocate(10_000));
        faults.wait_for_held(1);
        let mut data = bytes(1, 11_000);
        assert_eq!(run(&other, Direction::Write, &[segment(&mut data, 0)]).unwrap(), 11_000);
        faults.release();
        assert_eq!(preallocated.join().unwrap(), Ok(()));
    });
    assert_eq!(file.size().unwrap(), 11_000);
    unsupported();
    file.preallocate(12_000).unwrap();
    assert_eq!(file.size().unwrap(), 12_000);
}

// [MPI-50] [MPI-51]
fn hints_are_shown_with_counters(on: On) {
    let harness = Harness::start(on);
    let name = name(&harness, on, "f");
    let file = open(&name, &[("dafs_memory", "adio"), ("striping_factor", "4"), ("unknown", "x")]);
    let shown =
        |key: &str| file.shown_hints().into_iter().find(|(own, _)| own == key).map(|(_, value)| value);
    assert_eq!(shown("dafs_memory").as_deref(), Some("adio"));
    assert_eq!(shown("striping_factor").as_deref(), Some("4"));
    assert_eq!(shown("unknown"), None);
    assert_eq!(shown("dafs_stat_writes").as_deref(), Some("0"));
    run(&file, Direction::Write, &[segment(&mut bytes(1, 10), 0)]).unwrap();
    assert_eq!(shown("dafs_stat_writes").as_deref(), Some("1"));
    assert_eq!(shown("dafs_stat_written_bytes").as_deref(), Some("10"));
    file.take_hints([("dafs_memory", "dafs"), ("dafs_list_max", "nonsense")]);
    assert_eq!(shown("dafs_memory").as_deref(), Some("dafs"));
    assert_eq!(shown("dafs_list_max").as_deref(), Some("0"));
    assert_eq!(file.explanation(&file.counter_values()), None);
    file.take_hints([("dafs_explain", "true")]);
    run(&file, Direction::Read, &[segment(&mut [0; 10], 0)]).unwrap();
    let words = file.explanation(&file.counter_values()).unwrap();
    for part in ["/data/f", "read: 1 calls, 10 bytes", "reads 1", "writes 1"] {
        assert!(words.contains(part), "{part}: {words}");
    }
}

fn session_that_ended_is_replaced_at_the_next_open(on: On) {
    let mut harness = Harness::start(on);
    let name = name(&harness, on, "f");
    let file = open(&name, &[]);
    harness.stop();
    // Gone for longer than anybody waits: the session of this process is over.
    file.server().session.close();
    assert_eq!(run(&file, Direction::Read, &[segment(&mut [0; 10], 0)]).unwrap_err().class, Class::Io);
    harness.restart();
    let again = open(&name, &[]);
    assert_eq!(run(&again, Direction::Read, &[segment(&mut [0; 10], 0)]).unwrap(), 0);
}

// [MPI-76] [MPI-77]
fn view_is_described_once_and_may_be_refused(on: On) {
    let mut harness = Harness::start_with(on, |config| config.limits.views_max = 2);
    let session = harness.session();
    let described = || requests(&session, &["ViewSet"]);
    let of = |len| Type::new(vec![0], vec![len], 100).unwrap();
    let file = open(&name(&harness, on, "f"), &[]);
    file.describe(&of(1)).unwrap();
    assert_eq!(described(), 0, "no method names views");
    for hint in ["dafs_read_method", "dafs_write_method"] {
        file.take_hints([("dafs_read_method", "list"), ("dafs_write_method", "list"), (hint, "view")]);
        // The third has no room.
        for len in [1, 2, 3, 2, 3] {
            file.describe(&of(len)).unwrap();
        }
        assert_eq!(described(), 3, "{hint}");
    }
    harness.stop();
    file.server().session.close();
    file.describe(&of(3)).unwrap();
    assert_eq!(file.describe(&of(4)).unwrap_err().class, Class::Io);
}

// [MPI-77]
fn view_that_a_restarted_server_has_no_room_for_goes_by_lists(on: On) {
    let mut harness = Harness::start(on);
    let file = open(&name(&harness, on, "f"), &[("dafs_method", "view")]);
    let mut data = bytes(1, 1000);
    let counts = || ["views", "lists", "failures"].map(|name| counter(&file, name));
    // So far that no read takes the gaps along, in place of the view.
    for distance in [5, 6] {
        assert_eq!(file.run(by_view(Direction::Write, &mut data, distance)), (1000, Ok(())));
    }
    assert_eq!(counts(), [2, 0, 0]);
    harness.restart_with(|config| config.limits.views_size_max = 1);
    let mut found = vec![0; 1000];
    assert_eq!(file.run(by_view(Direction::Read, &mut found, 6)), (1000, Ok(())));
    assert!(found == data);
    // A view of its own, of a transfer that nobody waits for.
    let mut request = file.submit(by_view(Direction::Write, &mut found[..900], 5)).unwrap();
    while !request.test() {}
    assert_eq!(request.outcome(), (900, Ok(())));
    assert_eq!(counts(), [4, 2, 0]);
    // From now on they are not tried.
    for distance in [5, 6] {
        assert_eq!(file.run(by_view(Direction::Write, &mut data, distance)), (1000, Ok(())));
    }
    assert_eq!(counts(), [4, 4, 0]);
    assert_eq!(counter(&file, "read_bytes") + counter(&file, "written_bytes"), 5900);
}

// [MPI-77] The thread waits for a server that is not there until the other goes on.
fn test_does_not_wait_for_a_thread_describing_a_view(on: On) {
    let mut harness = Harness::start(on);
    let file = open(&name(&harness, on, "f"), &[("dafs_method", "view")]);
    let mut data = bytes(1, 1000);
    assert_eq!(file.run(by_view(Direction::Write, &mut data, 2)), (1000, Ok(())));
    harness.restart_with(|config| config.limits.views_size_max = 1);
    let mut request = file.submit(by_view(Direction::Write, &mut data[..900], 2)).unwrap();
    // Answered behind it: the server does not know its view.
    file.server().session.ping().unwrap();
    harness.stop();
    let describing = Arc::clone(&file);
    let describing =
        std::thread::spawn(move || describing.describe(&Type::new(vec![0], vec![1], 100).unwrap()));
    while counter(&file, "view_descriptions") < 2 {
        std::thread::yield_now();
    }
    assert!(!request.test(), "the rest goes by lists, to a server that is not there");
    harness.restart();
    assert_eq!(describing.join().unwrap(), Ok(()));
    while !request.test() {}
    assert_eq!(request.outcome(), (900, Ok(())));
}

// [MPI-84]
fn submit_describes_no_view_and_waits_for_nobody_who_does(on: On) {
    let mut harness = Harness::start(on);
    let file = open(&name(&harness, on, "f"), &[("dafs_method", "view")]);
    let mut data = bytes(1, 1000);
    let end = |mut request: Request| {
        request.wait();
        request.outcome()
    };
    let write = |data: &mut [u8]| file.submit(by_view(Direction::Write, data, 2)).unwrap();
    let counts = || ["view_descriptions", "views", "lists"].map(|name| counter(&file, name));
    assert_eq!(end(write(&mut data)), (1000, Ok(())));
    assert_eq!(counts(), [0, 0, 1]);
    // Whoever may wait describes it, and it is used.
    file.describe(&Type::new(vec![0], vec![1], 2).unwrap()).unwrap();
    assert_eq!(end(write(&mut data)), (1000, Ok(())));
    assert_eq!(counts(), [1, 1, 1]);
    // While another thread waits for the server to know another.
    harness.stop();
    let describing = Arc::clone(&file);
    let describing =
        std::thread::spawn(move || describing.describe(&Type::new(vec![0], vec![1], 100).unwrap()));
    while counter(&file, "view_descriptions") < 2 {
        std::thread::yield_now();
    }
    let request = write(&mut data);
    assert_eq!(counts(), [2, 1, 2]);
    harness.restart();
    assert_eq!(describing.join().unwrap(), Ok(()));
    assert_eq!(end(request), (1000, Ok(())));
}

fn file_is_opened_by_a_session_from_before_a_restart(on: On) {
    let mut harness = Harness::start(on);
    let name = name(&harness, on, "f");
    drop(open(&name, &[]));
    harness.restart();
    // It learns of the restart by this request.
    let again = open(&name, &[]);
    assert_eq!(run(&again, Direction::Read, &[segment(&mut [0; 10], 0)]).unwrap(), 0);
}

fn file_opens_in_an_export_moved_by_a_restart(on: On) {
    let mut harness = Harness::start(on);
    let name = name(&harness, on, "f");
    drop(open(&name, &[]));
    harness.stop();
    std::fs::rename(harness.data(), harness.scratch().join("before")).unwrap();
    std::fs::create_dir(harness.data()).unwrap();
    harness.restart();
    for _ in 0..2 {
        open(&name, &[]);
    }
    assert!(harness.data().join("f").exists());
}

fn file_that_is_closed_is_closed_at_the_server_at_once(on: On) {
    let harness = Harness::start(on);
    let session = harness.session();
    let file = open(&name(&harness, on, "f"), &[]);
    let handles = || session.statistics().unwrap().handles;
    let before = handles();
    drop(file);
    // Nothing else is said in its session.
    while handles() != before - 1 {
        std::thread::yield_now();
    }
}

// [MPI-92] It takes connections, and never says a word.
#[test]
fn next_call_does_not_wait_for_a_server_that_hung() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let name = format!("dafs+tcp://{}/data/f", listener.local_addr().unwrap());
    let connections = || std::iter::from_fn(|| listener.accept().ok()).count();
    let first = opening(&name, RDWR, &[]).open().unwrap_err();
    assert_eq!((first.class, connections()), (Class::Io, 1));
    let second = opening(&name, RDWR, &[]).open().unwrap_err();
    let third = delete(OsStr::new(&name)).unwrap_err();
    assert_eq!(connections(), 0, "nobody asked it again");
    assert_eq!(second.message, first.message);
    assert!(third.message.contains("no answer from"), "{third}");
}

// [MPI-91]
#[test]
fn file_reaches_its_last_byte_and_no_further() {
    let harness = Harness::start(On::Shm);
    let file = open(&name(&harness, On::Shm, "f"), &[]);
    assert!(!file.reaches(0).unwrap());
    file.resize(1000).unwrap();
    assert_eq!([999, 1000, u64::MAX / 4].map(|offset| file.reaches(offset).unwrap()), [true, false, false]);
    assert_eq!(counter(&file, "reads"), 0);
    let writes = opening(&name(&harness, On::Shm, "f"), WRONLY, &[]).open().unwrap();
    assert!(writes.reaches(0).is_err());
}
