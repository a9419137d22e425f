//! A process of the server's host with a lock on a file, as programs take it that know nothing of this server.

use std::io::{BufRead, BufReader};
use std::ops::Range;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// It has the lock until this is dropped.
#[derive(Debug)]
pub struct LockingProcess(Child);

impl LockingProcess {
    /// Starts it, and waits until it has an exclusive lock of a range.
    pub fn start(path: &Path, range: Range<u64>) -> Self {
        let program = "import fcntl, sys\n\
                       file = open(sys.argv[1], 'r+b')\n\
                       fcntl.lockf(file, fcntl.LOCK_EX, int(sys.argv[2]), int(sys.argv[3]))\n\
                       print('locked', flush=True)\n\
                       sys.stdin.read()\n";
        let mut child = Command::new("python3")
            .args(["-c", program])
            .arg(path)
            .args([(range.end - range.start).to_string(), range.start.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3");
        let mut said = String::new();
        let stdout = child.stdout.as_mut().expect("its output");
        BufReader::new(stdout).read_line(&mut said).expect("what it says");
        assert_eq!(said, "locked\n");
        Self(child)
    }

    /// Its number.
    pub fn id(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for LockingProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
