//! `dafs cp` to a file system that can write only when a file is closed what it was given, and then cannot.
#![allow(unsafe_code, reason = "makes a system call fail")]

use std::fs;
use std::io::{Error, Result};
use std::os::unix::process::CommandExt;
use std::process::Command;

use dafs_tests::harness::On;
use dafs_tests::on_sockets;
use dafs_tests::suite::bytes;

use crate::programs::{World, command};

// Nothing of this depends on how the data travels.
on_sockets! {
    copy_down_whose_close_fails_leaves_what_was_there,
}

/// Descriptors below it are those of what loads the program.
const FIRST_FAILING: u32 = 4;

#[allow(clippy::cast_possible_truncation, reason = "codes and system calls are small")]
fn step(code: u32, (k, jt, jf): (u32, u8, u8)) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt, jf, k }
}

/// From now on, close(2) of most descriptors fails in this process. As by a signal: Rust's library takes any other failure of a directory's
/// for its own fault.
fn fail_to_close() -> Result<()> {
    let load = |offset| step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, (offset, 0, 0));
    let end = |what| step(libc::BPF_RET | libc::BPF_K, (what, 0, 0));
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a small number")]
    let close = libc::SYS_close as u32;
    let mut steps = [
        // The number of the call, and its first argument: see `struct seccomp_data`.
        load(0),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, (close, 0, 3)),
        load(16),
        step(libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K, (FIRST_FAILING, 0, 1)),
        end(libc::SECCOMP_RET_ERRNO | libc::EINTR.unsigned_abs()),
        end(libc::SECCOMP_RET_ALLOW),
    ];
    let filter = libc::sock_fprog { len: 6, filter: steps.as_mut_ptr() };
    // SAFETY: the filter and its steps live until both calls have ended, which keep neither.
    let is_set = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter) == 0
    };
    if is_set { Ok(()) } else { Err(Error::last_os_error()) }
}

fn whose_close_fails(mut command: Command) -> Command {
    // SAFETY: the function makes two system calls and allocates nothing.
    unsafe { command.pre_exec(fail_to_close) };
    command
}

// [CMD-1] [CMD-28]
fn copy_down_whose_close_fails_leaves_what_was_there(on: On) {
    let world = World::start(on);
    let directory = world.local("down");
    fs::create_dir(&directory).unwrap();
    for size in [200_000, 3_000_000] {
        fs::write(world.data().join("f"), bytes(1, size)).unwrap();
        fs::write(directory.join("f"), "old").unwrap();
        let copy = command(["cp", &world.url("data/f"), directory.to_str().unwrap()]);
        let output = whose_close_fails(copy).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("cannot write") && said.contains("nterrupted system call"), "{said}");
        assert_eq!(fs::read(directory.join("f")).unwrap(), b"old");
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 1);
    }
}
