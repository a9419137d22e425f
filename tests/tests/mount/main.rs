//! `dafs mount`, by what programs see of it: files and their attributes, what two mounts see of each other, locks, users, and servers that
//! go and come.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "all of this is test code, helpers included")]
#![allow(clippy::cast_possible_truncation, reason = "sizes that the tests choose")]

mod away;
mod caching;
mod differential;
mod ends;
mod local;
mod locks;
mod names;
mod random;
mod space;
mod suites;
mod users;

use std::cell::Cell;
use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use dafs_tests::harness::On;
use dafs_tests::program::{Program, beside_this_test};
use dafs_tests::suite::wait_for;

/// Runs tests over shared memory, on an export whose files the kernel reads and writes itself.
macro_rules! on_passthrough {
    ($($(#[$attribute:meta])* $name:ident),* $(,)?) => {
        mod shm_passthrough {
            $(#[test] $(#[$attribute])* fn $name() {
                $crate::with_passthrough(|| super::$name(dafs_tests::harness::On::Shm));
            })*
        }
    };
}
pub(crate) use on_passthrough;

thread_local! {
    static PASSES: Cell<bool> = const { Cell::new(false) };
}

/// Servers that a test starts hand files over.
pub(crate) fn with_passthrough(test: impl FnOnce()) {
    struct Restored;
    impl Drop for Restored {
        fn drop(&mut self) {
            PASSES.set(false);
        }
    }
    PASSES.set(true);
    let _restored = Restored;
    test();
}

/// The command beside the tests.
pub(crate) fn dafs() -> Command {
    Command::new(beside_this_test("dafs", &["--package", "dafs-cli", "--bin", "dafs"], "dafs-cli/verbs"))
}

pub(crate) fn succeeded(output: &Output) {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// A server, and where its export is mounted.
pub(crate) struct World {
    pub(crate) server: Program,
    pub(crate) on: On,
    scratch: tempfile::TempDir,
}

/// A mount; taken away when it is dropped.
pub(crate) struct Mount {
    pub(crate) directory: PathBuf,
}

impl World {
    pub(crate) fn start(on: On) -> Self {
        Self::start_with(on, &[])
    }

    pub(crate) fn start_with(on: On, flags: &[&str]) -> Self {
        Self::start_limited(on, flags, None)
    }

    /// With a server that may have only so many files open.
    pub(crate) fn start_limited(on: On, flags: &[&str], open_files_max: Option<u32>) -> Self {
        let scratch = tempfile::tempdir().unwrap();
        let options = if PASSES.get() { ",local_open" } else { "" };
        Self { server: Program::start_exporting(on, options, flags, open_files_max), on, scratch }
    }

    pub(crate) fn url(&self) -> String {
        let colon = if matches!(self.on, On::Shm) { ":" } else { "" };
        format!("{}{colon}/data", self.server.url())
    }

    /// Mounts the export at a directory of this name.
    pub(crate) fn mount(&self, name: &str, flags: &[&str]) -> Mount {
        let directory = self.scratch.path().join(name);
        std::fs::create_dir_all(&directory).unwrap();
        let done = dafs().arg("mount").args(flags).arg(self.url()).arg(&directory).output().unwrap();
        succeeded(&done);
        Mount { directory }
    }

    /// As [`World::mount`], with little time for the server: tries again where that was too little, as on a busy machine.
    pub(crate) fn mount_in_time(&self, name: &str, flags: &[&str]) -> Mount {
        let directory = self.scratch.path().join(name);
        std::fs::create_dir_all(&directory).unwrap();
        wait_for("a mount", || {
            dafs().arg("mount").args(flags).arg(self.url()).arg(&directory).output().unwrap().status.success()
        });
        Mount { directory }
    }

    /// Lets users reach what the harness keeps for root alone, and make files in the export.
    pub(crate) fn open_way(&self) {
        for to in [&*self.server.data(), self.scratch.path()] {
            let ours = |above: &&Path| above.starts_with("/tmp/") || above.starts_with("/dev/shm/");
            for above in to.ancestors().filter(ours) {
                if let Ok(found) = std::fs::metadata(above) {
                    let mode = found.permissions().mode() | 0o111;
                    let _ = std::fs::set_permissions(above, std::fs::Permissions::from_mode(mode));
                }
            }
        }
        std::fs::set_permissions(self.server.data(), std::fs::Permissions::from_mode(0o777)).unwrap();
    }

    /// A file of the export, as the server's host has it.
    pub(crate) fn behind(&self, name: impl AsRef<Path>) -> PathBuf {
        self.server.data().join(name)
    }
}

impl Mount {
    pub(crate) fn at(&self, name: impl AsRef<Path>) -> PathBuf {
        self.directory.join(name)
    }
}

impl Mount {
    /// The process that serves it, in /proc.
    pub(crate) fn process(&self) -> PathBuf {
        let directory = self.directory.as_os_str().as_encoded_bytes();
        let names_it = |process: &PathBuf| {
            let words = std::fs::read(process.join("cmdline")).unwrap_or_default();
            words.split(|byte| *byte == 0).any(|word| word == directory)
        };
        let mut processes = std::fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().path());
        processes.find(names_it).unwrap()
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = dafs().args([OsStr::new("umount"), OsStr::new("--lazy")]).arg(&self.directory).output();
    }
}
