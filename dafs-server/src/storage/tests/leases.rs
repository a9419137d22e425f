//! Opens of files on which a process of the host holds a lease (fcntl(2)).

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;

use super::harness::*;
use crate::storage::*;

/// Which signal tells that somebody wants the file, in place of one that ends the process (fcntl(2)).
const F_SETSIG: libc::c_int = 10;

/// A lease on a file, given up when it is dropped.
struct Lease(File);

#[allow(unsafe_code, reason = "fcntl")]
impl Lease {
    fn take(path: &Path) -> Self {
        let file = File::options().read(true).write(true).open(path).unwrap();
        // A signal that nobody minds.
        // SAFETY: no memory is passed.
        assert_eq!(unsafe { libc::fcntl(file.as_raw_fd(), F_SETSIG, libc::SIGURG) }, 0);
        // A child of another test has the file open until it executes its program, and a thread until it has closed it.
        // SAFETY: as above.
        while unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK) } != 0 {
            let error = std::io::Error::last_os_error();
            assert_eq!(error.raw_os_error(), Some(libc::EAGAIN), "{error}");
            std::thread::yield_now();
        }
        Self(file)
    }

    /// Waits until somebody wants the file.
    fn wait_until_wanted(&self) {
        // SAFETY: as above.
        while unsafe { libc::fcntl(self.0.as_raw_fd(), libc::F_GETLEASE) } == libc::F_WRLCK {
            std::thread::yield_now();
        }
    }
}

// [STOR-191] [STOR-34]
#[test]
fn open_beside_a_lease_waits_alone_until_it_is_given_up() {
    const OPENERS: usize = 40;
    for kind in [Kind::Disk(Engine::Pool), Kind::Tmpfs].into_iter().filter(|kind| kinds().contains(kind)) {
        for flags in [OpenFlags::READ, RW, RWC, RWC | OpenFlags::TRUNCATE] {
            let mut files = Fixture::new(kind);
            for name in ["leased", "other"] {
                let node = files.open(name, RWC).unwrap();
                files.storage.close(node);
            }
            let named = files.lookup("leased").unwrap();
            let directory = files.directory.as_ref().unwrap().path().join("root");
            let lease = Lease::take(&directory.join("leased"));
            let places = (0..OPENERS).map(|number| match number % 2 {
                0 => files.at("leased"),
                _ => At { node: named, path: Vec::new() },
            });
            let opens: Vec<u64> = places
                .collect::<Vec<_>>()
                .into_iter()
                .map(|at| files.start(FsOp::Open { at, flags, mode: 0o644, admission: None }))
                .collect();
            lease.wait_until_wanted();
            // More wait for it than there are threads.
            let other = files.open("other", RWC | OpenFlags::TRUNCATE).unwrap();
            assert_eq!(files.write_submitted(other, 0, &[b"x"], Stability::DataSync), Ok(1));
            drop(lease);
            for open in opens {
                match files.finish(open) {
                    Ok(FsReply::Node(..)) => {}
                    other => panic!("{kind:?} {flags:?}: {other:?}"),
                }
            }
        }
    }
}
