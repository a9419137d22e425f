//! Where the suites keep their files.
//!
//! Over TCP they keep them where temporary files are, which mostly is a disk; otherwise in memory, where that is. So both kinds of file
//! systems are met, and what a disk takes its time for is not done once more for each provider and number of workers.

use std::fs;
use std::path::{Path, PathBuf};

use crate::suite::{self, Suite};

/// A file system in memory that any program may use.
const MEMORY: &str = "/dev/shm";

/// Free space that the suites want there, bytes.
const SIZE_MIN: u64 = 4 << 30;

/// The directory for those that keep their files in memory; removed when this is dropped.
#[derive(Debug)]
pub(crate) struct Places {
    memory: Option<PathBuf>,
}

impl Places {
    /// Makes it, where there is memory for it.
    pub(crate) fn new() -> Self {
        let directory = Path::new(MEMORY).join(format!("dafs-xtask-{}", std::process::id()));
        let has_room = rustix::fs::statvfs(MEMORY)
            .is_ok_and(|found| found.f_bavail.saturating_mul(found.f_frsize) >= SIZE_MIN);
        Self { memory: (has_room && fs::create_dir(&directory).is_ok()).then_some(directory) }
    }

    /// The tests of a suite, with where each of them keeps its files; `None`: where temporary files are.
    pub(crate) fn divide(&self, suite: &Suite, tests: Vec<String>) -> [(Option<&Path>, Vec<String>); 2] {
        let is_in_memory = |test: &String| {
            self.memory.is_some() && suite.is_system() && suite::column_of(test) != suite::column_of("tcp::")
        };
        let (in_memory, others) = tests.into_iter().partition(is_in_memory);
        [(None, others), (self.memory.as_deref(), in_memory)]
    }
}

impl Drop for Places {
    fn drop(&mut self) {
        if let Some(directory) = &self.memory {
            // What a test that was killed has left mounted there stays.
            let _ = fs::remove_dir_all(directory);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite::TargetId;

    #[test]
    fn suites_of_the_whole_keep_their_files_in_memory_but_over_tcp() {
        let target = |package: &str| TargetId {
            package: package.to_owned(),
            kind: "test".to_owned(),
            name: "session".to_owned(),
        };
        let suite = |package| Suite {
            name: "session".to_owned(),
            directory: PathBuf::new(),
            version: String::new(),
            targets: vec![target(package)],
        };
        let tests = || ["tcp::a", "shm::a", "tcp_three_workers::a", "b"].map(str::to_owned).to_vec();
        let places = Places { memory: Some(PathBuf::from("/nowhere/at/all")) };
        let [(temporary, on_disk), (memory, in_memory)] = places.divide(&suite("dafs-tests"), tests());
        assert_eq!((temporary, on_disk), (None, vec!["tcp::a".to_owned()]));
        assert_eq!((memory, in_memory.len()), (Some(Path::new("/nowhere/at/all")), 3));
        assert_eq!(places.divide(&suite("dafs-server"), tests())[0].1.len(), 4);
        assert_eq!(Places { memory: None }.divide(&suite("dafs-tests"), tests())[0].1.len(), 4);
    }
}
