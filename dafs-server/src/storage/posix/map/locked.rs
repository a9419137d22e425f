//! How much of files the process keeps locked into memory: bounded, since nothing else can use that memory meanwhile.

use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The share of the machine's memory, or of what a control group may use, that is locked at most.
const SHARE: u64 = 16;

/// Bytes that all exports have locked.
static LOCKED_SIZE: AtomicUsize = AtomicUsize::new(0);

/// Bytes that may be locked; given back when it is dropped.
pub(super) struct Locked(usize);

impl Locked {
    /// So many bytes, unless all would become too many.
    pub(super) fn take(len: usize) -> Option<Self> {
        static SIZE_MAX: OnceLock<usize> = OnceLock::new();
        let max = *SIZE_MAX.get_or_init(|| usize::try_from(memory_size() / SHARE).unwrap_or(usize::MAX));
        let grown = |size: usize| size.checked_add(len).filter(|size| *size <= max);
        LOCKED_SIZE.fetch_update(Ordering::Relaxed, Ordering::Relaxed, grown).ok()?;
        Some(Self(len))
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        LOCKED_SIZE.fetch_sub(self.0, Ordering::Relaxed);
    }
}

/// What the machine has, or the least that a control group of this process may use, bytes.
fn memory_size() -> u64 {
    let text = |path: &Path| std::fs::read_to_string(path).unwrap_or_default();
    let machine = total_of(&text(Path::new("/proc/meminfo")));
    let cgroup = text(Path::new("/proc/self/cgroup"));
    let above = group_of(&cgroup).into_iter().flat_map(|group| Path::new(group).ancestors());
    let groups = above.filter_map(|group| {
        let path = Path::new("/sys/fs/cgroup").join(group.strip_prefix("/").ok()?).join("memory.max");
        text(&path).trim().parse().ok()
    });
    groups.chain(machine).min().unwrap_or(0)
}

/// Bytes of all memory, of /proc/meminfo.
fn total_of(meminfo: &str) -> Option<u64> {
    let total = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    total.trim().strip_suffix(" kB")?.parse::<u64>().ok()?.checked_mul(1024)
}

/// The control group, of /proc/self/cgroup.
fn group_of(cgroup: &str) -> Option<&str> {
    cgroup.lines().find_map(|line| line.strip_prefix("0::"))
}

#[cfg(test)]
mod tests {
    use super::*;

    // [STOR-196]
    #[test]
    fn no_more_than_a_share_of_memory_is_locked() {
        let all = memory_size();
        assert!(all > 0, "the machine has some");
        let max = usize::try_from(all / SHARE).unwrap();
        assert!(Locked::take(max + 1).is_none() && Locked::take(usize::MAX).is_none());
        let some = Locked::take(4096).unwrap();
        assert!(LOCKED_SIZE.load(Ordering::Relaxed) >= 4096);
        drop(some);
    }

    #[test]
    fn memory_and_group_are_what_the_kernel_says() {
        assert_eq!(total_of("MemTotal:       24684092 kB\nMemFree: 1 kB\n"), Some(24_684_092 * 1024));
        assert_eq!(total_of("MemFree: 1 kB\n"), None);
        assert_eq!(
            group_of("1:name=systemd:/a\n0::/system.slice/dafs.service\n"),
            Some("/system.slice/dafs.service")
        );
    }
}
