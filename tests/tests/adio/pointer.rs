//! The shared file pointer, which the server keeps.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;

use adio_dafs::error::Class;
use adio_dafs::file::File;
use dafs_client::{Config, FenceList, FenceMode, LockKind, OpenOptions};
use dafs_proto::wire::Features;
use dafs_server::access::IdentityMapping;
use dafs_tests::faulty::{Fault, Kind};
use dafs_tests::harness::{Harness, On};
use dafs_tests::on_sockets;
use dafs_tests::suite::wait_for;

use crate::support::{RDONLY, RDWR, counter, name, open, opening, requests};

on_sockets! {
    pointer_is_shared_by_those_who_opened_together,
    pointer_is_moved_by_one_at_a_time,
    pointer_is_made_when_it_is_used_and_removed,
    pointer_begins_anew_with_each_view,
    pointer_survives_a_restart_of_the_server,
    pointer_is_made_durable_with_the_data,
    pointer_that_may_have_moved_before_a_restart_is_not_moved_again,
    pointer_that_was_removed_by_others_is_an_error,
    pointer_that_was_cut_by_others_is_an_error,
    lock_of_the_pointer_ends_with_whoever_died,
    pointer_that_cannot_be_made_says_why,
    pointer_that_nobody_can_lock_is_not_made,
    pointer_refused_to_one_is_not_refused_to_all,
}

/// A file that two processes have open.
fn open_together(harness: &Harness, on: On) -> [Arc<File>; 2] {
    let name = name(harness, on, "f");
    let first = open(&name, &[]);
    let ticket = first.share().unwrap();
    [first, Arc::new(opening(&name, RDWR, &[]).join(&ticket).unwrap())]
}

/// The files of pointers.
fn pointers(harness: &Harness) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(harness.data()).unwrap().map(|entry| entry.unwrap().path());
    entries.filter(|path| path.to_string_lossy().contains("dafs-shared-pointer")).collect()
}

// [MPI-65]
fn pointer_is_shared_by_those_who_opened_together(on: On) {
    let harness = Harness::start(on);
    let [a, b] = open_together(&harness, on);
    let [c, d] = open_together(&harness, on);
    assert_eq!([a.add_to_pointer(5).unwrap(), b.add_to_pointer(7).unwrap()], [0, 5]);
    assert_eq!([a.add_to_pointer(0).unwrap(), b.add_to_pointer(0).unwrap()], [12, 12]);
    // Another open has another one.
    assert_eq!([c.add_to_pointer(1).unwrap(), d.add_to_pointer(0).unwrap()], [0, 1]);
    b.set_pointer(3).unwrap();
    assert_eq!(a.add_to_pointer(u64::MAX >> 1).unwrap_err().class, Class::Argument);
    assert_eq!(a.add_to_pointer(1).unwrap(), 3);
    assert_eq!(counter(&a, "pointer_moves"), 4);
}

// [MPI-65]
fn pointer_is_moved_by_one_at_a_time(on: On) {
    let harness = Harness::start(on);
    let files = open_together(&harness, on);
    let mut taken: Vec<u64> = std::thread::scope(|scope| {
        let each =
            |file: Arc<File>| scope.spawn(move || (0..50).map(|_| file.add_to_pointer(3).unwrap()).collect());
        let threads: Vec<_> = files.iter().chain(&files).map(|file| each(Arc::clone(file))).collect();
        threads
            .into_iter()
            .flat_map(|thread: std::thread::ScopedJoinHandle<'_, Vec<u64>>| thread.join().unwrap())
            .collect()
    });
    taken.sort_unstable();
    assert_eq!(taken, (0..200).map(|k| 3 * k).collect::<Vec<_>>());
}

// [MPI-66]
fn pointer_is_made_when_it_is_used_and_removed(on: On) {
    let harness = Harness::start(on);
    let session = harness.session();
    let [a, b] = open_together(&harness, on);
    assert_eq!((pointers(&harness).len(), requests(&session, &["Open"])), (0, 1));
    assert!(!a.uses_pointer() && !b.uses_pointer());
    b.add_to_pointer(1).unwrap();
    assert!(!a.uses_pointer() && b.uses_pointer());
    assert_eq!(pointers(&harness).len(), 1);
    a.remove_pointer().unwrap();
    a.remove_pointer().unwrap();
    assert_eq!(pointers(&harness).len(), 0);
}

// [MPI-67]
fn pointer_begins_anew_with_each_view(on: On) {
    let harness = Harness::start(on);
    let [a, b] = open_together(&harness, on);
    for file in [&a, &b] {
        file.begin_pointer(100);
    }
    assert_eq!(a.add_to_pointer(10).unwrap(), 100);
    for file in [&a, &b] {
        file.begin_pointer(0);
    }
    assert_eq!(b.add_to_pointer(4).unwrap(), 0);
    assert_eq!(a.add_to_pointer(0).unwrap(), 4);
    // One that alone has another view would go back to where others were.
    a.begin_pointer(0);
    a.add_to_pointer(1).unwrap();
    assert_eq!(b.add_to_pointer(1).unwrap_err().class, Class::Argument);
}

// [MPI-65]
fn pointer_survives_a_restart_of_the_server(on: On) {
    let mut harness = Harness::start(on);
    let [a, b] = open_together(&harness, on);
    assert_eq!([a.add_to_pointer(5).unwrap(), b.add_to_pointer(5).unwrap()], [0, 5]);
    harness.restart();
    assert_eq!([b.add_to_pointer(5).unwrap(), a.add_to_pointer(5).unwrap()], [10, 15]);
}

// [MPI-86]
fn pointer_is_made_durable_with_the_data(on: On) {
    let harness = Harness::start(on);
    let session = harness.session();
    let [a, b] = open_together(&harness, on);
    a.add_to_pointer(5).unwrap();
    let before = requests(&session, &["Commit"]);
    b.sync().unwrap();
    assert_eq!(requests(&session, &["Commit"]) - before, 1, "it has not moved it");
    a.sync().unwrap();
    assert_eq!(requests(&session, &["Commit"]) - before, 3, "that of the file, and that of the pointer");
}

// [MPI-87] Storage has moved it, and the server ends before it says so. Its file is another then, with the same content.
fn pointer_that_may_have_moved_before_a_restart_is_not_moved_again(on: On) {
    let (mut harness, faults) = Harness::start_faulty(on, |config| config.drain_ms = 0);
    let [a, b] = open_together(&harness, on);
    assert_eq!(a.add_to_pointer(5).unwrap(), 0);
    faults.next(Kind::Write, Fault::Late, 1);
    let error = std::thread::scope(|scope| {
        let moves = scope.spawn(|| a.add_to_pointer(5).unwrap_err());
        let path = &pointers(&harness)[0];
        let copy = path.with_extension("copy");
        wait_for("it is moved", || std::fs::read(path).unwrap().get(8) == Some(&10));
        std::fs::copy(path, &copy).unwrap();
        std::fs::rename(&copy, path).unwrap();
        harness.restart();
        moves.join().unwrap()
    });
    assert!(error.message.contains("may or may not have moved it"), "{error}");
    assert_eq!([b.add_to_pointer(1).unwrap(), a.add_to_pointer(1).unwrap()], [10, 11]);
}

// [MPI-65]
fn pointer_that_was_removed_by_others_is_an_error(on: On) {
    let mut harness = Harness::start(on);
    let [a, b] = open_together(&harness, on);
    a.add_to_pointer(5).unwrap();
    b.add_to_pointer(5).unwrap();
    std::fs::remove_file(&pointers(&harness)[0]).unwrap();
    harness.restart();
    // Not begun at 0 again, where data is.
    for file in [&a, &b] {
        let error = file.add_to_pointer(5).unwrap_err();
        assert_eq!(error.class, Class::NoSuchFile, "{error}");
        assert!(error.message.contains("the shared file pointer of"), "{error}");
    }
    assert_eq!(pointers(&harness).len(), 0);
}

// [MPI-65]
fn pointer_that_was_cut_by_others_is_an_error(on: On) {
    let harness = Harness::start(on);
    let [a, b] = open_together(&harness, on);
    a.add_to_pointer(5).unwrap();
    assert_eq!(b.add_to_pointer(0).unwrap(), 5);
    std::fs::File::create(&pointers(&harness)[0]).unwrap();
    // Not begun at 0 again, where data is: neither by who has moved it nor by who has seen it.
    for file in [&a, &b] {
        let error = file.add_to_pointer(5).unwrap_err();
        assert!(error.class == Class::Argument && error.message.contains("its file was cut"), "{error}");
    }
    // What is set is there again, and a view begins anew in any case.
    a.set_pointer(7).unwrap();
    assert_eq!(b.add_to_pointer(1).unwrap(), 7);
    std::fs::File::create(&pointers(&harness)[0]).unwrap();
    for file in [&a, &b] {
        file.begin_pointer(0);
    }
    assert_eq!(a.add_to_pointer(1).unwrap(), 0);
}

// [MPI-65]
fn lock_of_the_pointer_ends_with_whoever_died(on: On) {
    let harness = Harness::start(on);
    let [a, _] = open_together(&harness, on);
    a.add_to_pointer(5).unwrap();
    let path = pointers(&harness)[0].file_name().unwrap().to_owned();
    let dies = harness.session();
    let export = dies.mount("data").unwrap();
    let file = export.open_with(&path, OpenOptions::new().read(true).write(true)).unwrap();
    file.lock(0..16, LockKind::Exclusive).unwrap();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| a.add_to_pointer(5).unwrap());
        dies.close();
        assert_eq!(waits.join().unwrap(), 5);
    });
}

// [MPI-68]
fn pointer_that_cannot_be_made_says_why(on: On) {
    let harness = Harness::start_with(on, |config| config.exports[0].read_only = true);
    std::fs::write(harness.data().join("f"), b"some").unwrap();
    let file = opening(&name(&harness, on, "f"), RDONLY, &[]).open().unwrap();
    let error = file.open_pointer().unwrap_err();
    assert_eq!(error.class, Class::ReadOnly, "{error}");
    assert!(error.message.contains("cannot make the shared file pointer of"), "{error}");
    assert!(!file.uses_pointer());
}

// [MPI-68] [MPI-71]
fn pointer_that_nobody_can_lock_is_not_made(on: On) {
    let harness = Harness::start_with(on, |config| config.features = Features::all() - Features::LOCKS);
    let [a, b] = open_together(&harness, on);
    assert_eq!(a.open_pointer().unwrap_err().class, Class::Unsupported);
    assert_eq!(b.add_to_pointer(1).unwrap_err().class, Class::Unsupported);
    assert!(!a.uses_pointer() && !b.uses_pointer());
    assert_eq!(pointers(&harness), Vec::<PathBuf>::new());
}

// [MPI-89] Whoever takes the MPI library's pointer keeps it, and would write over what others have written by the server's.
fn pointer_refused_to_one_is_not_refused_to_all(on: On) {
    let is_root = rustix::process::geteuid().is_root();
    let harness = Harness::start_with(on, |config| {
        if is_root {
            config.exports[0].squash = IdentityMapping::Fixed { uid: 1000, gid: 1000 };
        }
    });
    let allow = |path: PathBuf, mode| std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    allow(harness.data(), 0o777);
    let [a, b] = open_together(&harness, on);
    let [_, unused] = open_together(&harness, on);
    assert_eq!(a.add_to_pointer(5).unwrap(), 0);
    let administrator = harness.session_with(&Config { client_id: Some([9; 16]), ..Config::default() });
    let export = administrator.mount("data").unwrap();
    let others = FenceList { mode: FenceMode::Allow, ..FenceList::of_clients(&[[9; 16]]) };
    export.set_fence_list(&others).unwrap();
    // A fence is of one client, and of a moment.
    for file in [&b, &unused] {
        let error = file.open_pointer().unwrap_err();
        assert!(error.class == Class::Io && error.message.contains("fenced off"), "{error}");
    }
    export.set_fence_list(&FenceList::default()).unwrap();
    let pointer = pointers(&harness).remove(0);
    allow(harness.data(), 0o555);
    allow(pointer.clone(), 0);
    assert_eq!(b.open_pointer().unwrap_err().class, Class::Io, "it is there");
    assert_eq!(unused.open_pointer().unwrap_err().class, Class::Access, "nobody has it");
    allow(pointer, 0o600);
    assert_eq!([b.add_to_pointer(1).unwrap(), a.add_to_pointer(0).unwrap()], [5, 6]);
    allow(harness.data(), 0o755);
}
