//! Which parts of the address space are mapped, and how: asked of the system.
#![allow(unsafe_code, reason = "an ioctl about this process's own address space that touches no memory")]
#![allow(clippy::cast_possible_truncation, reason = "addresses of this process")]

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::os::fd::AsRawFd;
use std::sync::Mutex;

use super::Extent;

/// Bytes of a page.
pub(super) fn page_size() -> usize {
    // SAFETY: asks for a number.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size).unwrap_or(4096)
}

/// The parts of the extent that are mapped readable, and writable where `write`; ascending, in pages, neighbours joined.
///
/// By `PROCMAP_QUERY` (Linux 6.11), a call for each mapping; before that by one read of `/proc/self/maps`.
pub(crate) fn accessible(extent: Extent, write: bool) -> io::Result<Vec<Extent>> {
    accessible_by(each_mapping, extent, write)
}

fn accessible_by(
    ask: fn(Extent, &mut dyn FnMut(Mapping)) -> io::Result<()>,
    extent: Extent,
    write: bool,
) -> io::Result<Vec<Extent>> {
    let (within, mut parts) = (extent.to_pages(), Vec::<Extent>::new());
    ask(extent, &mut |mapping| {
        let (start, end) = (mapping.extent.start.max(within.start), mapping.extent.end.min(within.end));
        if !mapping.permits(write) || start >= end {
            return;
        }
        match parts.last_mut() {
            Some(last) if last.end == start => last.end = end,
            _ => parts.push(Extent { start, end }),
        }
    })?;
    Ok(parts)
}

/// The mappings of which any lies in the extent, whole, ascending; of those that the system merges, one.
pub(crate) fn mappings(extent: Extent) -> io::Result<Vec<Extent>> {
    let mut mappings = Vec::new();
    each_mapping(extent, &mut |mapping| mappings.push(mapping.extent))?;
    Ok(mappings)
}

fn each_mapping(extent: Extent, found: &mut dyn FnMut(Mapping)) -> io::Result<()> {
    match query(extent, found) {
        // A system that does not know the question, or a filter of system calls that forbids it, says so at the first.
        Err(error)
            if matches!(
                error.raw_os_error(),
                Some(libc::ENOTTY | libc::EINVAL | libc::ENOSYS | libc::EPERM)
            ) =>
        {
            list(extent, found)
        }
        result => result,
    }
}

struct Mapping {
    extent: Extent,
    readable: bool,
    writable: bool,
}

impl Mapping {
    fn permits(&self, write: bool) -> bool {
        self.readable && (self.writable || !write)
    }
}

/// Mappings of the extent that are looked at; what lies behind them counts as not accessible.
const MAPPINGS_MAX: usize = 65_536;

/// `struct procmap_query` of `linux/fs.h`.
#[repr(C)]
#[derive(Default)]
struct ProcmapQuery {
    size: u64,
    query_flags: u64,
    query_addr: u64,
    vma_start: u64,
    vma_end: u64,
    vma_flags: u64,
    vma_page_size: u64,
    vma_offset: u64,
    inode: u64,
    dev_major: u32,
    dev_minor: u32,
    vma_name_size: u32,
    build_id_size: u32,
    vma_name_addr: u64,
    build_id_addr: u64,
}

/// `_IOWR('f', 17, struct procmap_query)`
const PROCMAP_QUERY: libc::Ioctl =
    (3 << 30 | (size_of::<ProcmapQuery>() as u64) << 16 | (b'f' as u64) << 8 | 17) as libc::Ioctl;
const VMA_READABLE: u64 = 0x01;
const VMA_WRITABLE: u64 = 0x02;
const COVERING_OR_NEXT_VMA: u64 = 0x10;

/// `/proc/self/maps` and whose it is: after a fork the child's is another.
static MAPS: Mutex<Option<(u32, File)>> = Mutex::new(None);

fn query(extent: Extent, found: &mut dyn FnMut(Mapping)) -> io::Result<()> {
    // Without waiting: in a child of a fork the thread that has it may not exist.
    let mut kept = MAPS.try_lock();
    let mut own = None;
    let kept = kept.as_deref_mut().unwrap_or(&mut own);
    let me = std::process::id();
    let maps = match kept {
        Some((owner, maps)) if *owner == me => maps,
        other => &mut other.insert((me, File::open("/proc/self/maps")?)).1,
    };
    let mut address = extent.start;
    for _ in 0..MAPPINGS_MAX {
        let mut query = ProcmapQuery {
            size: size_of::<ProcmapQuery>() as u64,
            query_flags: COVERING_OR_NEXT_VMA,
            query_addr: address as u64,
            ..ProcmapQuery::default()
        };
        // SAFETY: the kernel reads and writes the structure, whose size it is told; no buffers for names are given.
        let result = unsafe { libc::ioctl(maps.as_raw_fd(), PROCMAP_QUERY, &raw mut query) };
        if result < 0 {
            let error = io::Error::last_os_error();
            match error.raw_os_error() {
                // No mapping there or behind it.
                Some(libc::ENOENT) => break,
                Some(libc::EINTR) => continue,
                _ => return Err(error),
            }
        }
        let mapping = Extent { start: query.vma_start as usize, end: query.vma_end as usize };
        if mapping.start >= extent.end {
            break;
        }
        let has = |flag| query.vma_flags & flag != 0;
        found(Mapping { extent: mapping, readable: has(VMA_READABLE), writable: has(VMA_WRITABLE) });
        if mapping.end >= extent.end {
            break;
        }
        address = mapping.end;
    }
    Ok(())
}

fn list(extent: Extent, found: &mut dyn FnMut(Mapping)) -> io::Result<()> {
    for line in BufReader::with_capacity(1 << 16, File::open("/proc/self/maps")?).split(b'\n') {
        let Some((mapping, readable, writable)) = parse(&line?) else { continue };
        if mapping.start >= extent.end {
            break;
        }
        if mapping.end > extent.start {
            found(Mapping { extent: mapping, readable, writable });
        }
    }
    Ok(())
}

/// Address range, readable, writable of a line such as `7f00-7f10 rw-p 00000000 00:00 0`.
fn parse(line: &[u8]) -> Option<(Extent, bool, bool)> {
    let line = std::str::from_utf8(line.get(..line.len().min(64))?).ok()?;
    let mut words = line.split_ascii_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let protection = words.next()?.as_bytes();
    let extent =
        Extent { start: usize::from_str_radix(start, 16).ok()?, end: usize::from_str_radix(end, 16).ok()? };
    Some((extent, protection.first() == Some(&b'r'), protection.get(1) == Some(&b'w')))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::registration::area::Area;

    const PAGE: usize = 4096;

    fn both(extent: Extent, write: bool) -> Vec<Extent> {
        let parts = accessible_by(list, extent, write).unwrap();
        assert_eq!(accessible(extent, write).unwrap(), parts, "both ways of asking agree");
        parts
    }

    #[test]
    fn memory_without_holes_is_one_part() {
        let area = Area::new(16 * PAGE);
        let whole = Extent::new(area.address(), 16 * PAGE);
        let extent = Extent { start: whole.start + 1, end: whole.end - 1 };
        assert_eq!(both(extent, true), [whole]);
    }

    #[test]
    fn holes_and_protected_pages_divide_it() {
        let area = Area::new(16 * PAGE);
        area.unmap(3 * PAGE, PAGE);
        area.protect(7 * PAGE, PAGE, libc::PROT_READ);
        area.protect(11 * PAGE, PAGE, libc::PROT_NONE);
        let part = |from: usize, to: usize| Extent::new(area.address() + from * PAGE, (to - from) * PAGE);
        assert_eq!(both(part(0, 16), true), [part(0, 3), part(4, 7), part(8, 11), part(12, 16)]);
        assert_eq!(both(part(0, 16), false), [part(0, 3), part(4, 11), part(12, 16)]);
        assert_eq!(both(part(3, 4), false), []);
    }

    #[test]
    fn mappings_are_whole_though_asked_for_in_part() {
        let area = Area::new(16 * PAGE);
        let part = |from: usize, to: usize| Extent::new(area.address() + from * PAGE, (to - from) * PAGE);
        area.protect(0, PAGE, libc::PROT_NONE);
        area.unmap(7 * PAGE, PAGE);
        area.protect(15 * PAGE, PAGE, libc::PROT_NONE);
        assert_eq!(mappings(part(2, 3)).unwrap(), [part(1, 7)]);
        assert_eq!(mappings(part(6, 9)).unwrap(), [part(1, 7), part(8, 15)]);
        assert_eq!(mappings(part(7, 8)).unwrap(), []);
    }

    #[test]
    fn lines_that_are_none_are_left_out() {
        assert_eq!(parse(b"1000-2000 r--p 0 0"), Some((Extent { start: 0x1000, end: 0x2000 }, true, false)));
        for line in [&b""[..], b"-", b"x-y rw", b"1000 rw", b"1000-2000", b"\xff\xfe"] {
            assert_eq!(parse(line), None);
        }
    }
}
