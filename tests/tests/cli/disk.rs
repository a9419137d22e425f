//! A disk of a test's own, of which the test sees what it would have after a crash: ext2 in an image that lies in a small tmpfs, mounted.
//! Not ext4: what that could not write once may read as zeroes there though it was written again. A kernel without a driver of its own for
//! ext2 uses that of ext4, which makes most names durable unasked: that they are asked for is tested with storage.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A small tmpfs, in it a sparse image, and its file system mounted; all taken away with the test.
pub(crate) struct Disk {
    small: PathBuf,
    mounted: PathBuf,
}

impl Disk {
    /// Of 64 MiB, of which the image has room for 8, mounted at a directory that is there.
    pub(crate) fn new(at: &Path) -> Self {
        let disk = Self { small: at.with_extension("small"), mounted: at.to_owned() };
        std::fs::create_dir(&disk.small).unwrap();
        let image = disk.image();
        let steps = run("mount", &["-t", "tmpfs", "-o", "size=8m", "tmpfs", text(&disk.small)])
            .and_then(|()| run("truncate", &["-s", "64m", text(&image)]))
            .and_then(|()| run("mkfs.ext2", &["-q", text(&image)]))
            .and_then(|()| disk.mount());
        steps.unwrap();
        disk
    }

    fn image(&self) -> PathBuf {
        self.small.join("image")
    }

    /// Where a copy is mounted.
    fn crashed(&self) -> PathBuf {
        self.mounted.with_extension("crashed")
    }

    fn mount(&self) -> Result<(), String> {
        run("mount", &["-o", "loop", text(&self.image()), text(&self.mounted)])
    }

    /// Gives the image the room that it was promised.
    pub(crate) fn grow(&self) {
        run("mount", &["-o", "remount,size=160m", text(&self.small)]).unwrap();
    }

    /// Forgets what is only in memory. Nobody uses the disk.
    pub(crate) fn mount_again(&self) {
        unmount(&self.mounted);
        self.mount().unwrap();
    }

    /// A copy of what the disk has now: what is only in the machine's memory is not in it.
    fn copy(&self) -> PathBuf {
        let copy = self.small.join("copy");
        // A new file: the kernel may still have what a mount of the one before has read.
        let _ = std::fs::remove_file(&copy);
        run("cp", &["--sparse=always", text(&self.image()), text(&copy)]).unwrap();
        copy
    }

    /// Looks at what would be there if the machine crashed now.
    pub(crate) fn after_a_crash<T>(&self, look: impl FnOnce(&Path) -> T) -> T {
        let mounted = self.crashed();
        std::fs::create_dir_all(&mounted).unwrap();
        run("mount", &["-o", "loop,ro", text(&self.copy()), text(&mounted)]).unwrap();
        let found = look(&mounted);
        unmount(&mounted);
        found
    }

    /// What a file would have.
    pub(crate) fn file_after_a_crash(&self, name: &str) -> Option<Vec<u8>> {
        self.after_a_crash(|root| std::fs::read(root.join(name)).ok())
    }

    /// Crashes the machine: the disk has what it had before `end` ended its users, checked as when a machine boots.
    pub(crate) fn crash(&self, end: impl FnOnce()) {
        let copy = self.copy();
        end();
        unmount(&self.mounted);
        // A new file: the kernel may not have let go of the other yet.
        std::fs::remove_file(self.image()).unwrap();
        std::fs::rename(copy, self.image()).unwrap();
        let checked = Command::new("e2fsck").args(["-fy", text(&self.image())]).output().unwrap();
        // 1: it has mended what a crash leaves.
        assert!(matches!(checked.status.code(), Some(0 | 1)), "{checked:?}");
        self.mount().unwrap();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // What a failed test has left.
        for directory in [&self.crashed(), &self.mounted, &self.small] {
            let _ = run("umount", &["-l", text(directory)]);
        }
    }
}

/// A program that another test starts has all files of this one open for a moment.
fn unmount(at: &Path) {
    while let Err(why) = run("umount", &[text(at)]) {
        assert!(why.contains("busy"), "{why}");
        std::thread::yield_now();
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn run(program: &str, arguments: &[&str]) -> Result<(), String> {
    match Command::new(program).args(arguments).output() {
        Ok(output) if output.status.success() => Ok(()),
        other => Err(format!("{program}: {other:?}")),
    }
}
