//! Programs that a filter forbids some system calls, as containers' profiles do.
#![allow(unsafe_code, reason = "prctl, and what a child does before it becomes the program")]

use std::os::unix::process::CommandExt;
use std::process::Command;

use libc::{c_long, sock_filter, sock_fprog};

/// Where the number of a call stands in what a filter sees (seccomp(2)).
const NUMBER_AT: u32 = 0;

/// From its start on these calls of the program fail with this error. So do those of the programs that it starts.
pub fn forbid<'c>(command: &'c mut Command, calls: &[c_long], errno: i32) -> &'c mut Command {
    answer(command, calls, libc::SECCOMP_RET_ERRNO | errno as u32)
}

/// The program is killed when it makes one of these calls: it cannot do without them unseen.
pub fn kill_at<'c>(command: &'c mut Command, calls: &[c_long]) -> &'c mut Command {
    answer(command, calls, libc::SECCOMP_RET_KILL_PROCESS)
}

fn answer<'c>(command: &'c mut Command, calls: &[c_long], answer: u32) -> &'c mut Command {
    let statement = |code: u32, k: u32| sock_filter { code: code as u16, jt: 0, jf: 0, k };
    let mut filter = vec![statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, NUMBER_AT)];
    for call in calls {
        // Not this one: past the answer.
        let is_it = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
        filter.push(sock_filter { jf: 1, ..statement(is_it, *call as u32) });
        filter.push(statement(libc::BPF_RET | libc::BPF_K, answer));
    }
    filter.push(statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW));
    let install = move || {
        let program = sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
        // SAFETY: the program and its filter are as long as said, and read only while the call lasts.
        let installed = unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
                && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0
        };
        if installed { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    };
    // SAFETY: between fork and exec two system calls are made, and nothing is allocated.
    unsafe { command.pre_exec(install) }
}

/// The program starts with these signals blocked, as by a parent that had blocked them for itself.
pub fn block<'c>(command: &'c mut Command, signals: &'static [i32]) -> &'c mut Command {
    let block = move || {
        // SAFETY: the set is made by the first call, and lives while the others use it.
        let blocked = unsafe {
            let mut set = std::mem::zeroed();
            libc::sigemptyset(&raw mut set);
            signals.iter().all(|signal| libc::sigaddset(&raw mut set, *signal) == 0)
                && libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) == 0
        };
        if blocked { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    };
    // SAFETY: between fork and exec system calls are made, and nothing is allocated.
    unsafe { command.pre_exec(block) }
}
