//! What one mount sees of what another does: the promises of each kind of caching.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;

use dafs_tests::harness::On;

use crate::World;

dafs_tests::on_sockets! {
    #[ignore = "needs fuse"]
    what_one_closed_another_sees_when_it_opens,
    #[ignore = "needs fuse"]
    name_that_was_given_to_another_file_opens_that,
    #[ignore = "needs fuse"]
    without_a_cache_each_read_asks,
    #[ignore = "needs fuse"]
    file_that_nobody_changed_is_read_once,
    #[ignore = "needs fuse"]
    appends_of_two_mounts_never_overlap,
    #[ignore = "needs fuse"]
    writes_that_the_kernel_gathers_are_there_after_fsync,
    #[ignore = "needs fuse"]
    directory_has_the_attributes_of_its_last_change,
}

crate::on_passthrough! {
    #[ignore = "needs fuse"]
    what_one_closed_another_sees_when_it_opens,
    #[ignore = "needs fuse"]
    name_that_was_given_to_another_file_opens_that,
    #[ignore = "needs fuse"]
    without_a_cache_each_read_asks,
    #[ignore = "needs fuse"]
    appends_of_two_mounts_never_overlap,
}

// [MOUNT-1]
fn what_one_closed_another_sees_when_it_opens(on: On) {
    let world = World::start(on);
    let (a, b) = (world.mount("a", &[]), world.mount("b", &[]));
    // Longer, shorter, and as long as before; by the one and by the other.
    let mut texts =
        vec!["first".to_owned(), "a second, longer".to_owned(), "short".to_owned(), "equal".to_owned()];
    texts.push("y".repeat(300_000));
    texts.push("z".repeat(300_000));
    for round in 0..3 {
        for (number, text) in texts.iter().enumerate() {
            let (writer, reader) = if (round + number) % 2 == 0 { (&a, &b) } else { (&b, &a) };
            fs::write(writer.at("f"), text).unwrap();
            assert_eq!(fs::read_to_string(reader.at("f")).unwrap(), *text);
            assert_eq!(fs::metadata(world.behind("f")).unwrap().len(), text.len() as u64);
        }
    }
}

// [MOUNT-2]
fn name_that_was_given_to_another_file_opens_that(on: On) {
    let world = World::start(on);
    let flags = ["--name-time", "3600", "--attribute-time", "3600"];
    let (a, b) = (world.mount("a", &flags), world.mount("b", &[]));
    for number in 0..5 {
        let text = format!("text {number}");
        fs::write(b.at("new"), &text).unwrap();
        fs::rename(b.at("new"), b.at("f")).unwrap();
        assert_eq!(fs::read_to_string(a.at("f")).unwrap(), text);
    }
}

// [MOUNT-3]
fn without_a_cache_each_read_asks(on: On) {
    let world = World::start(on);
    let (a, b) = (world.mount("a", &["--cache", "none"]), world.mount("b", &[]));
    fs::write(b.at("f"), "one").unwrap();
    let open = fs::File::open(a.at("f")).unwrap();
    for text in ["one", "two", "more than that"] {
        fs::write(b.at("f"), text).unwrap();
        let mut buffer = [0; 64];
        let count = open.read_at(&mut buffer, 0).unwrap();
        assert_eq!(&buffer[..count], text.as_bytes());
        assert_eq!(fs::metadata(a.at("f")).unwrap().len(), text.len() as u64);
    }
    fs::rename(b.at("f"), b.at("g")).unwrap();
    assert!(!a.at("f").exists() && a.at("g").exists());
}

// [MOUNT-4]
fn file_that_nobody_changed_is_read_once(on: On) {
    let world = World::start(on);
    let mount = world.mount("m", &[]);
    fs::write(world.behind("f"), vec![7; 1 << 20]).unwrap();
    let session = world.server.session();
    let read = || session.statistics().unwrap().bytes_read.iter().sum::<u64>();
    assert_eq!(fs::read(mount.at("f")).unwrap().len(), 1 << 20);
    let once = read();
    assert!(once >= 1 << 20);
    for _ in 0..5 {
        assert_eq!(fs::read(mount.at("f")).unwrap().len(), 1 << 20);
    }
    assert_eq!(read(), once);
    fs::write(world.behind("f"), vec![8; 1 << 20]).unwrap();
    assert_eq!(fs::read(mount.at("f")).unwrap(), vec![8; 1 << 20]);
}

// [MOUNT-5]
fn appends_of_two_mounts_never_overlap(on: On) {
    const LINES: usize = 400;
    let world = World::start(on);
    let (a, b) = (world.mount("a", &[]), world.mount("b", &[]));
    let append = |path: &Path, word: &str| {
        let mut log = fs::File::options().append(true).create(true).open(path).unwrap();
        for number in 0..LINES {
            log.write_all(format!("{word} {number} {}\n", "x".repeat(number % 50)).as_bytes()).unwrap();
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| append(&a.at("log"), "a"));
        scope.spawn(|| append(&b.at("log"), "b"));
        scope.spawn(|| append(&b.at("log"), "c"));
    });
    let log = fs::read_to_string(world.behind("log")).unwrap();
    assert_eq!(fs::read_to_string(a.at("log")).unwrap(), log);
    for word in ["a", "b", "c"] {
        let lines = log.lines().filter(|line| line.starts_with(word));
        let numbers: Vec<usize> =
            lines.map(|line| line.split(' ').nth(1).unwrap().parse().unwrap()).collect();
        assert_eq!(numbers, (0..LINES).collect::<Vec<_>>(), "of {word}");
    }
}

fn directory_has_the_attributes_of_its_last_change(on: On) {
    let world = World::start(on);
    let mount = world.mount("m", &[]);
    let (here, behind) = (mount.at("d"), world.behind("d"));
    fs::create_dir(&here).unwrap();
    let look = |at: &Path| {
        let found = fs::metadata(at).unwrap();
        (found.mode(), found.nlink(), found.mtime(), found.mtime_nsec(), found.ctime(), found.ctime_nsec())
    };
    let changes: [&dyn Fn(u32); 6] = [
        &|_| drop(fs::File::create_new(here.join("f")).unwrap()),
        &|_| fs::create_dir(here.join("sub")).unwrap(),
        &|round| fs::set_permissions(&here, fs::Permissions::from_mode(0o700 | round)).unwrap(),
        &|_| fs::rename(here.join("f"), here.join("g")).unwrap(),
        &|_| fs::remove_file(here.join("g")).unwrap(),
        &|_| fs::remove_dir(here.join("sub")).unwrap(),
    ];
    for round in 0..5 {
        for change in changes {
            change(round);
            assert_eq!(look(&here), look(&behind), "in round {round}");
        }
        // The last change is one that nobody looked at.
        fs::create_dir(here.join("sub")).unwrap();
        fs::remove_dir(here.join("sub")).unwrap();
        fs::set_permissions(&here, fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(look(&here), look(&behind), "in round {round}");
    }
}

// [MOUNT-6]
fn writes_that_the_kernel_gathers_are_there_after_fsync(on: On) {
    let world = World::start(on);
    let mount = world.mount("m", &["--writeback"]);
    let mut file = fs::File::create(mount.at("f")).unwrap();
    for number in 0..5000 {
        writeln!(file, "{number}").unwrap();
    }
    file.sync_all().unwrap();
    let wanted: String = (0..5000).map(|number| format!("{number}\n")).collect();
    assert_eq!(fs::read_to_string(world.behind("f")).unwrap(), wanted);
}
