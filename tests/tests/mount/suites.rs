//! The suites that file systems are tested with: fsx, and pjdfstest, each a program of its own.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use dafs_tests::harness::On;
use dafs_tests::program::write_script;
use nix::unistd::{Group, User};

use crate::{World, on_passthrough};

dafs_tests::on_sockets! {
    #[ignore = "needs fsx"]
    fsx_finds_no_difference,
}

on_passthrough! {
    #[ignore = "needs fsx"]
    fsx_finds_no_difference,
}

/// Each on one provider alone: what differs between them is tested above, and elsewhere.
mod once {
    mod shm {
        #[test]
        #[ignore = "needs fsx"]
        fn fsx_without_a_cache_finds_no_difference() {
            super::super::fsx(dafs_tests::harness::On::Shm, &["--no-passthrough", "--cache", "none"]);
        }
    }

    mod tcp {
        #[test]
        #[ignore = "needs pjdfstest"]
        fn every_case_of_pjdfstest_passes() {
            super::super::pjdfstest(dafs_tests::harness::On::Tcp);
        }
    }
}

/// Where xtask has built it.
fn program(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    // Of target/PROFILE/deps/TEST.
    let target = test.ancestors().nth(3).unwrap();
    let program = target.join("suites/bin").join(name);
    assert!(program.is_file(), "{} is not there: cargo xtask test builds it", program.display());
    program
}

/// Every operation that it knows. Those that move data are the most frequent.
const OPERATIONS: &str = "
flen = 300000
[opsize]
min = 1
max = 65536
[weights]
close_open = 1
invalidate = 1
mapread = 2
mapwrite = 2
read = 4
write = 4
truncate = 1
fsync = 0.3
fdatasync = 0.3
posix_fallocate = 1
punch_hole = 1
sendfile = 1
posix_fadvise = 1
copy_file_range = 1
";

fn fsx_finds_no_difference(on: On) {
    fsx(on, &[]);
}

fn fsx(on: On, flags: &[&str]) {
    let world = World::start(on);
    let mount = world.mount("m", flags);
    let scratch = world.server.scratch();
    let config = scratch.join("fsx.toml");
    fs::write(&config, OPERATIONS).unwrap();
    let mut command = Command::new(program("fsx"));
    command.args(["-N", "6000", "-S", "7", "-f"]).arg(&config).arg("-P").arg(scratch).arg(mount.at("f"));
    let done = command.output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr).into_owned() + &String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success() && said.contains("A-OK"), "{said}");
}

/// Cases that do not pass, with the reason.
const NOT_PASSED: [(&str, &str); 1] = [
    // FUSE has no way to tell how many links a file may have, so the case has no number to go by.
    ("link::link_count_max", "skipped"),
];
/// Cases in all.
const CASES: usize = 398;

fn pjdfstest(on: On) {
    let world = World::start(on);
    let mount = world.mount("m", &[]);
    world.open_way();
    let scratch = world.server.scratch();
    let path = path_with_mount(scratch);
    let run = |remounts: bool, cases: &[&str]| {
        let config = scratch.join("pjdfstest.toml");
        fs::write(&config, configuration(remounts)).unwrap();
        let mut command = Command::new(program("pjdfstest"));
        command.arg("-c").arg(&config).arg("-p").arg(&mount.directory).arg("-s").arg(scratch).args(cases);
        let done = command.env("PATH", &path).env_remove("RUST_BACKTRACE").output().unwrap();
        String::from_utf8(done.stdout).unwrap() + &String::from_utf8_lossy(&done.stderr)
    };
    // Some of the others leave files open, and a mount where files are open cannot become read-only.
    let (read_only, others) = (run(true, &["::erofs_"]), run(false, &[]));
    let results = others.lines().chain(read_only.lines()).filter_map(result_in);
    let results: BTreeMap<&str, &str> = results.collect();
    assert_eq!(results.len(), CASES, "{read_only}{others}");
    let not_passed: Vec<_> = results.into_iter().filter(|(_, result)| *result != "ok").collect();
    assert_eq!(not_passed, NOT_PASSED, "{read_only}{others}");
}

/// What can be told of the server's file systems, and two users beside root.
fn configuration(remounts: bool) -> String {
    let entry = |name: &str| {
        let user = User::from_name(name).unwrap().unwrap_or_else(|| panic!("there is no user {name}"));
        let group = Group::from_gid(user.gid).unwrap().unwrap();
        format!("[\"{name}\", \"{}\"]", group.name)
    };
    format!(
        "[features]\nposix_fallocate = {{}}\nutime_now = {{}}\nutimensat = {{}}\nrename_ctime = {{}}\n\
         [settings]\nnaptime = 0.02\nallow_remount = {remounts}\n\
         [dummy_auth]\nentries = [{}, {}]\n",
        entry("nobody"),
        entry("daemon")
    )
}

/// The case and its result in a line of the output, such as `chmod::eloop   ok`.
fn result_in(line: &str) -> Option<(&str, &str)> {
    let (case, result) = line.split_once("  ")?;
    case.contains("::").then_some((case, result.trim()))
}

const MOUNT_SCRIPT: &str = "#!/bin/sh
for attempt in $(seq 100); do
    said=$(/bin/mount --internal-only \"$@\" 2>&1) && exit
    case $said in *busy*) ;; *) break ;; esac
done
echo \"$said\" >&2
exit 1
";

/// A search path on which mount(8) does what it is asked itself: the machine may have helpers for FUSE, and they do not know dafs. It tries
/// again while the mount is busy: the kernel does not wait for FUSE to release files that are removed and closed.
fn path_with_mount(scratch: &Path) -> std::ffi::OsString {
    let directory = scratch.join("bin");
    fs::create_dir(&directory).unwrap();
    let script = directory.join("mount");
    write_script(&script, MOUNT_SCRIPT);
    let old = std::env::var_os("PATH").unwrap_or_default();
    std::env::join_paths(std::iter::once(directory).chain(std::env::split_paths(&old))).unwrap()
}
