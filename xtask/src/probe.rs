//! What shows that a machine has something.

#![allow(unsafe_code, reason = "userfaultfd: a system call that makes a descriptor, which is closed unused")]

use std::net::{Ipv6Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::fs::{Mode, OFlags};
use rustix::mm::UserfaultfdFlags;

use crate::crates::Crate;
use crate::{crates, debian, fio, suite};

/// One sign that something is there.
#[derive(Debug)]
pub(crate) enum Probe {
    /// A program on the path or in an administrator's directory.
    Program(&'static str),
    /// One of these files in one of the machine's library directories.
    Library(&'static [&'static str]),
    /// We are the superuser.
    Root,
    /// This variable is set in the environment.
    Variable(&'static str),
    /// A C header in the compiler's usual directories.
    Header(&'static str),
    /// The library with which bindings are made from C headers.
    Libclang,
    /// A file or directory.
    File(&'static str),
    /// The processor and C library that mapped windows of files are read on.
    HotWindows,
    /// The kernel makes rings for us.
    IoUring,
    /// The kernel tells us of what happens to memory.
    Userfaultfd,
    /// A socket can be bound to `::1`.
    Ipv6,
    /// unshare(1) makes a user namespace.
    UserNamespace,
    /// Hosts can be made that are behind a link: network namespaces.
    Link,
    /// A tmpfs can be mounted.
    Tmpfs,
    /// A file system in a file can be mounted.
    LoopMount,
    /// Temporary files are on a disk, are opened with O_DIRECT too, and the kernel tells which pages of them it keeps.
    PageCache,
    /// Temporary files are on ext4, XFS or Btrfs.
    LockablePages,
    /// The source of the fio of this machine is here, or can be downloaded to the target directory.
    FioSource,
    /// A bare Debian is in the target directory, or can be downloaded to it, and programs run in it.
    DebianRoot,
    /// The program of a crate is in the target directory, or can be downloaded and built there.
    Crate(Crate),
}

impl Probe {
    pub(crate) fn holds(&self) -> bool {
        match self {
            Probe::Program(name) => {
                program_directories().iter().any(|directory| directory.join(name).is_file())
            }
            Probe::Library(names) => library_directories()
                .iter()
                .any(|directory| names.iter().any(|name| directory.join(name).is_file())),
            Probe::Root => is_root(),
            Probe::Variable(name) => std::env::var_os(name).is_some(),
            Probe::Header(name) => {
                ["/usr/include", "/usr/local/include"].iter().any(|it| Path::new(it).join(name).is_file())
            }
            Probe::Libclang => {
                std::env::var_os("LIBCLANG_PATH").is_some()
                    || library_directories()
                        .into_iter()
                        // Debian keeps it in its own directory: /usr/lib/llvm-14/lib.
                        .flat_map(|directory| [directory.join("lib"), directory])
                        .any(|directory| holds_libclang(&directory))
            }
            Probe::File(path) => Path::new(path).exists(),
            Probe::HotWindows => cfg!(all(target_arch = "x86_64", target_env = "gnu")),
            Probe::IoUring => io_uring::IoUring::new(2).is_ok(),
            Probe::Userfaultfd => has_userfaultfd(),
            Probe::Ipv6 => TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).is_ok(),
            Probe::UserNamespace => succeeds(Command::new("unshare").args(["-r", "true"])),
            Probe::Link => {
                succeeds(Command::new("unshare").args(["--net", "ip", "link", "add", "type", "veth"]))
            }
            Probe::Tmpfs => in_new_directory(|directory| mounts(&["-t", "tmpfs", "tmpfs"], directory)),
            Probe::LoopMount => in_new_directory(can_mount_image),
            Probe::FioSource => is_supplied(fio::supply_source),
            Probe::DebianRoot => is_supplied(debian::supply),
            Probe::Crate(wanted) => is_supplied(|root| crates::supply(root, wanted)),
            Probe::LockablePages => has_lockable_pages(&std::env::temp_dir()),
            Probe::PageCache => tells_of_page_cache() && in_new_directory(can_bypass_page_cache),
        }
    }
}

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn has_userfaultfd() -> bool {
    // The kernel's UFFD_USER_MODE_ONLY: what needs no privilege.
    let user_mode_only = UserfaultfdFlags::from_bits_retain(1);
    [user_mode_only, UserfaultfdFlags::empty()].into_iter().any(|flags| {
        // SAFETY: watches no memory, and is closed at once.
        unsafe { rustix::mm::userfaultfd(flags | UserfaultfdFlags::CLOEXEC) }.is_ok()
    })
}

fn is_supplied(supply: impl FnOnce(&Path) -> anyhow::Result<()>) -> bool {
    let supplied = supply(&suite::root());
    if let Err(why) = &supplied {
        println!("    {why:#}");
    }
    supplied.is_ok()
}

/// Mounts there, and takes it away again.
fn mounts(options: &[&str], directory: &Path) -> bool {
    let is_mounted = succeeds(Command::new("mount").args(options).arg(directory));
    is_mounted && succeeds(Command::new("umount").arg("-l").arg(directory))
}

fn can_mount_image(directory: &Path) -> bool {
    let (image, place) = (directory.join("image"), directory.join("place"));
    let is_made = std::fs::create_dir(&place).is_ok()
        && std::fs::File::create(&image).is_ok_and(|image| image.set_len(1 << 20).is_ok())
        && succeeds(Command::new("mkfs.ext2").arg("-q").arg(&image));
    is_made && image.to_str().is_some_and(|image| mounts(&["-o", "loop", image], &place))
}

/// Its cachestat(2).
fn tells_of_page_cache() -> bool {
    const SINCE: (u32, u32) = (6, 5);
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release.split(['.', '-']).map_while(|number| number.parse().ok());
    numbers.next().zip(numbers.next()).is_some_and(|version: (u32, u32)| version >= SINCE)
}

/// A file system in memory may take O_DIRECT, and has nothing to bypass.
fn can_bypass_page_cache(directory: &Path) -> bool {
    const TMPFS_MAGIC: rustix::fs::FsWord = 0x0102_1994;
    let flags = OFlags::CREATE | OFlags::RDWR | OFlags::DIRECT | OFlags::CLOEXEC;
    let is_on_disk = rustix::fs::statfs(directory).is_ok_and(|found| found.f_type != TMPFS_MAGIC);
    is_on_disk && rustix::fs::open(directory.join("image"), flags, Mode::RUSR | Mode::WUSR).is_ok()
}

fn has_lockable_pages(directory: &Path) -> bool {
    const MAGICS: [rustix::fs::FsWord; 3] = [0xef53, 0x5846_5342, 0x9123_683e];
    rustix::fs::statfs(directory).is_ok_and(|found| MAGICS.contains(&found.f_type))
}

fn in_new_directory(probe: impl FnOnce(&Path) -> bool) -> bool {
    let directory = new_directory();
    let holds = std::fs::create_dir(&directory).is_ok() && probe(&directory);
    // What is still mounted there stays.
    let _ = std::fs::remove_file(directory.join("image"));
    let _ = std::fs::remove_dir(directory.join("place"));
    let _ = std::fs::remove_dir(&directory);
    holds
}

fn new_directory() -> PathBuf {
    std::env::temp_dir().join(format!("dafs-xtask-probe-{}", std::process::id()))
}

fn succeeds(command: &mut Command) -> bool {
    let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    quiet.status().is_ok_and(|status| status.success())
}

fn holds_libclang(directory: &Path) -> bool {
    std::fs::read_dir(directory).into_iter().flatten().flatten().any(|entry| {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let is_clang = name.starts_with("libclang.so") || name.starts_with("libclang-");
        is_clang && name.contains(".so") && !name.starts_with("libclang-cpp")
    })
}

fn program_directories() -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let administrators = ["/usr/sbin", "/sbin", "/usr/local/sbin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(administrators).collect()
}

fn library_directories() -> Vec<PathBuf> {
    let nested = std::fs::read_dir("/usr/lib").into_iter().flatten().flatten().map(|entry| entry.path());
    nested.filter(|path| path.is_dir()).chain(["/usr/lib".into(), "/usr/lib64".into()]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probe_finds_programs_and_libraries() {
        assert!(Probe::Program("sh").holds());
        assert!(!Probe::Program("no-such-program-here").holds());
        assert!(Probe::Library(&["no-such-library.so", "os-release"]).holds());
        assert!(!Probe::Library(&["no-such-library.so"]).holds());
        assert!(Probe::Header("stdio.h").holds());
        assert!(!Probe::Header("no-such-header.h").holds());
        assert!(Probe::File("/proc/self").holds());
        assert!(!Probe::File("/no-such-file").holds());
    }

    #[test]
    fn probe_of_mounts_leaves_nothing_behind() {
        for probe in [Probe::Tmpfs, Probe::LoopMount] {
            assert!(is_root() || !probe.holds(), "only the superuser mounts: {probe:?}");
        }
        Probe::PageCache.holds();
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
        assert!(!mounts.contains(new_directory().to_str().unwrap()), "{mounts}");
        assert!(!new_directory().exists());
    }
}
