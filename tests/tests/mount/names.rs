//! Files, directories and what they are called.

use std::ffi::OsStr;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};

use dafs_tests::harness::On;
use dafs_tests::suite::bytes;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, RenameFlags, Timespec, Timestamps};

use crate::World;

dafs_tests::on_sockets! {
    #[ignore = "needs fuse"]
    tree_that_is_made_is_there_on_the_server,
    #[ignore = "needs fuse"]
    listing_has_every_name_once_and_goes_on_where_it_was,
    #[ignore = "needs fuse"]
    file_without_a_name_gets_one,
    #[ignore = "needs fuse"]
    attributes_are_kept_to_the_nanosecond,
    #[ignore = "needs fuse"]
    holes_and_copies_are_the_server_s,
    #[ignore = "needs fuse"]
    file_that_only_reads_can_be_created,
    #[ignore = "needs fuse"]
    names_that_are_exchanged_lead_to_each_other,
    #[ignore = "needs fuse"]
    file_that_is_striped_over_servers_is_not_opened,
}

fn tree_that_is_made_is_there_on_the_server(on: On) {
    let world = World::start(on);
    let mount = world.mount("m", &[]);
    let odd = OsStr::from_bytes(b"not \xff UTF-8");
    fs::create_dir(mount.at("d")).unwrap();
    let data = bytes(3, 3_000_000);
    fs::write(mount.at("d").join(odd), &data).unwrap();
    assert_eq!(fs::read(world.behind("d").join(odd)).unwrap(), data);
    std::os::unix::fs::symlink("d", mount.at("link")).unwrap();
    assert_eq!(fs::read_link(world.behind("link")).unwrap(), OsStr::new("d"));
    fs::hard_link(mount.at("d").join(odd), mount.at("second")).unwrap();
    assert_eq!(fs::metadata(mount.at("second")).unwrap().nlink(), 2);
    fs::rename(mount.at("second"), mount.at("d/third")).unwrap();
    assert_eq!(fs::read(mount.at("link/third")).unwrap(), data);
    rustix::fs::mknodat(CWD, mount.at("fifo"), rustix::fs::FileType::Fifo, Mode::from(0o640), 0).unwrap();
    let fifo = fs::symlink_metadata(world.behind("fifo")).unwrap();
    assert!(fifo.file_type().is_fifo() && fifo.permissions().mode() & 0o777 == 0o640);
    // What is there is not replaced where that is asked for.
    let kept =
        rustix::fs::renameat_with(CWD, mount.at("fifo"), CWD, mount.at("link"), RenameFlags::NOREPLACE);
    assert_eq!(kept, Err(rustix::io::Errno::EXIST));
    for name in ["d/third", "fifo", "link"] {
        fs::remove_file(mount.at(name)).unwrap();
    }
    assert_eq!(fs::remove_dir(mount.at("d")).unwrap_err().raw_os_error(), Some(libc::ENOTEMPTY));
    fs::remove_file(mount.at("d").join(odd)).unwrap();
    fs::remove_dir(mount.at("d")).unwrap();
    assert_eq!(fs::read_dir(world.behind("")).unwrap().count(), 0);
}

fn listing_has_every_name_once_and_goes_on_where_it_was(on: On) {
    let world = World::start(on);
    let mount = world.mount("m", &[]);
    let names: Vec<String> = (0..3000).map(|number| format!("a name of some length {number}")).collect();
    names.iter().for_each(|name| drop(fs::File::create(world.behind(name)).unwrap()));
    let mut seen: Vec<String> = fs::read_dir(mount.at(""))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    seen.sort();
    let mut wanted = names;
    wanted.sort();
    assert_eq!(seen, wanted);
    // From a place in the middle: what follows it, and nothing twice.
    let directory = fs::File::open(mount.at("")).unwrap();
    let mut listing = rustix::fs::Dir::read_from(&directory).unwrap();
    let first: Vec<_> = listing.by_ref().take(700).map(|entry| entry.unwrap()).collect();
    let place = first.last().unwrap().offset();
    listing.seek(place).unwrap();
    assert_eq!(listing.count(), wanted.len() + 2 - 700);
    let mut again = rustix::fs::Dir::read_from(&directory).unwrap();
    let dots: Vec<_> = again.by_ref().take(2).map(|entry| entry.unwrap().file_name().to_owned()).collect();
    assert_eq!(dots, [c".".to_owned(), c"..".to_owned()]);
}

fn file_without_a_name_gets_one(on: On) {
    let world = World::start(on);
    let mount = world.mount("m", &[]);
    let mut file = fs::File::options()
        .read(true)
        .write(true)
        .custom_flags(libc::O_TMPFILE)
        .mode(0o600)
        .open(mount.at(""))
        .unwrap();
    file.write_all(b"whole").unwrap();
    assert_eq!(fs::read_dir(world.behind("")).unwrap().count(), 0);
    let descriptor = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
    rustix::fs::linkat(CWD, descriptor, CWD, mount.at("named"), AtFlags::SYMLINK_FOLLOW).unwrap();
    assert_eq!(fs::read(world.behind("named")).unwrap(), b"whole");
    // One that gets none is gone with its descriptor.
    drop(fs::File::options().write(true).custom_flags(libc::O_TMPFILE).open(mount.at("")).unwrap());
    assert_eq!(fs::read_dir(world.behind("")).unwrap().count(), 1);
}

fn attributes_are_kept_to_the_nanosecond(on: On) {
    let world = World::start(on);
    let mount = world.mount("m", &[]);
    fs::write(mount.at("f"), b"x").unwrap();
    for (seconds, nanoseconds) in [(-631_152_000, 1), (7_258_118_400, 999_999_999), (0, 0)] {
        let time = Timespec { tv_sec: seconds, tv_nsec: nanoseconds };
        let times = Timestamps { last_access: time, last_modification: time };
        rustix::fs::utimensat(CWD, mount.at("f"), &times, AtFlags::empty()).unwrap();
        for path in [mount.at("f"), world.behind("f")] {
            let found = fs::metadata(path).unwrap();
            assert_eq!((found.mtime(), found.mtime_nsec()), (seconds, nanoseconds));
        }
    }
    fs::set_permissions(mount.at("f"), fs::Permissions::from_mode(0o4751)).unwrap();
    assert_eq!(fs::metadata(world.behind("f")).unwrap().mode() & 0o7777, 0o4751);
    rustix::fs::setxattr(mount.at("f"), "user.k", b"value", rustix::fs::XattrFlags::CREATE).unwrap();
    let mut value = [0; 16];
    assert_eq!(rustix::fs::getxattr(world.behind("f"), "user.k", &mut value), Ok(5));
    assert_eq!(rustix::fs::getxattr(mount.at("f"), "user.k", &mut value[..2]), Err(rustix::io::Errno::RANGE));
    assert_eq!(rustix::fs::getxattr(mount.at("f"), "user.z", &mut value), Err(rustix::io::Errno::NODATA));
}

fn holes_and_copies_are_the_server_s(on: On) {
    let world = World::start(on);
    let mount = world.mount("m", &[]);
    let file = fs::File::create(mount.at("f")).unwrap();
    file.set_len(8 << 20).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, b"island", 4 << 20).unwrap();
    let data = rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(0)).unwrap();
    assert_eq!(data, 4 << 20);
    let hole = rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(data)).unwrap();
    assert!(hole > data && hole < 5 << 20, "{hole}");
    let source = fs::File::open(mount.at("f")).unwrap();
    let target = fs::File::create(mount.at("g")).unwrap();
    let (mut from, mut to) = (4 << 20, 10);
    let copied = rustix::fs::copy_file_range(&source, Some(&mut from), &target, Some(&mut to), 6).unwrap();
    assert_eq!((copied, fs::read(world.behind("g")).unwrap()), (6, b"\0\0\0\0\0\0\0\0\0\0island".to_vec()));
}

fn file_that_only_reads_can_be_created(on: On) {
    let world = World::start(on);
    let mount = world.mount("m", &[]);
    let flags = OFlags::RDONLY | OFlags::CREATE | OFlags::EXCL;
    let file = rustix::fs::open(mount.at("f"), flags, Mode::from(0o444)).unwrap();
    assert_eq!(fs::File::from(file).read(&mut [0; 4]).unwrap(), 0);
    assert_eq!(fs::metadata(world.behind("f")).unwrap().mode() & 0o777, 0o444);
}

fn names_that_are_exchanged_lead_to_each_other(on: On) {
    let world = World::start(on);
    let mount = world.mount("m", &["--name-time", "3600"]);
    fs::create_dir(mount.at("d")).unwrap();
    fs::write(mount.at("d/below"), "below").unwrap();
    fs::write(mount.at("f"), "file").unwrap();
    let open = fs::File::open(mount.at("f")).unwrap();
    let exchange =
        |from, to| rustix::fs::renameat_with(CWD, mount.at(from), CWD, mount.at(to), RenameFlags::EXCHANGE);
    exchange("d", "f").unwrap();
    assert_eq!(fs::read_to_string(mount.at("d")).unwrap(), "file");
    assert_eq!(fs::read_to_string(mount.at("f/below")).unwrap(), "below");
    assert_eq!(fs::read_to_string(world.behind("f/below")).unwrap(), "below");
    // Nodes that the kernel knows are found at their new places.
    assert_eq!(open.metadata().unwrap().len(), 4);
    fs::write(mount.at("f/more"), "more").unwrap();
    assert_eq!(exchange("f", "gone").unwrap_err(), rustix::io::Errno::NOENT);
}

fn file_that_is_striped_over_servers_is_not_opened(on: On) {
    let world = World::start(on);
    let mount = world.mount("m", &[]);
    for name in ["striped", "sticky"] {
        fs::write(mount.at(name), b"").unwrap();
        fs::set_permissions(mount.at(name), fs::Permissions::from_mode(0o1644)).unwrap();
    }
    rustix::fs::setxattr(mount.at("striped"), "user.dafs.layout", b"1", rustix::fs::XattrFlags::CREATE)
        .unwrap();
    for error in
        [fs::read(mount.at("striped")).unwrap_err(), fs::write(mount.at("striped"), b"x").unwrap_err()]
    {
        assert_eq!(error.raw_os_error(), Some(libc::EOPNOTSUPP));
    }
    assert_eq!(fs::metadata(world.behind("striped")).unwrap().len(), 0);
    fs::write(mount.at("sticky"), b"x").unwrap();
    assert_eq!(fs::read(mount.at("sticky")).unwrap(), b"x");
}
