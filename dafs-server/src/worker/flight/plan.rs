//! Which calls of storage a list takes: pure. Moving data is [`crate::ops`]'.

use std::ops::Range;

use dafs_proto::extent::{Extent, Part};
use dafs_proto::transport::RemoteRange;
use smallvec::SmallVec;

/// Segments of memory in one call of storage: what `preadv` takes.
const CALL_SEGMENTS_MAX: usize = 1024;

/// Bytes between two parts up to which reading them as well is quicker than a call of its own: below what was measured for cached data on
/// any machine seen (2.4 KB).
pub(crate) const READ_GAP_MAX: u64 = 2048;

/// The largest gap that a read which has to wait may take in one call, bytes: beyond what pays on any disk seen (58 KB).
pub(crate) const WAITING_GAP_MAX: u64 = 64 * 1024;

/// A call that passes over gaps is no longer than this, bytes: several at a time, each in a cache.
const SIEVED_SIZE_MAX: u64 = 256 * 1024;

/// One call of storage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Call {
    /// The parts that it moves.
    pub(crate) parts: Range<usize>,
    /// First byte of the file.
    pub(crate) offset: u64,
    /// Bytes, gaps included.
    pub(crate) len: u64,
}

/// What the parts of a call take without what lies between them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Apart {
    /// Calls of neighbours.
    pub(crate) calls: u32,
    /// Bytes of all.
    pub(crate) bytes: u64,
}

impl Apart {
    pub(crate) fn of(parts: &[Part], call: &Call) -> Self {
        let parts = parts.get(..call.parts.end).unwrap_or_default();
        let each = std::iter::successors(next_call(parts, call.parts.start, 0), |call| {
            next_call(parts, call.parts.end, 0)
        });
        each.fold(Self::default(), |all, call| Self { calls: all.calls + 1, bytes: all.bytes + call.len })
    }
}

/// The call that begins with part `from`; `None` behind the last. `parts` ascend. Gaps of at most `gap_max` bytes are passed over.
pub(crate) fn next_call(parts: &[Part], from: usize, gap_max: u64) -> Option<Call> {
    let first = parts.get(from)?;
    let (mut end, mut segments, mut to) = (first.end(), 1, from + 1);
    while let Some(part) = parts.get(to) {
        let Some(gap) = part.offset.checked_sub(end).filter(|gap| *gap <= gap_max) else { break };
        segments += 1 + usize::from(gap > 0);
        let is_sieved = segments > to - from + 1;
        if segments > CALL_SEGMENTS_MAX || is_sieved && part.end() - first.offset > SIEVED_SIZE_MAX {
            break;
        }
        end = part.end();
        to += 1;
    }
    Some(Call { parts: from..to, offset: first.offset, len: end - first.offset })
}

/// The first place of a list whose byte of the file is not written, when these `parts` of a write are not, as far as they lie at `stopped`
/// or behind. `extents` are those of the list, from place 0 on. A place that a later one is to be written over has no part, and is not in
/// the file before that one is.
pub(crate) fn first_unwritten(
    parts: &[Part],
    stopped: u64,
    mut extents: impl Iterator<Item = Extent>,
) -> Option<u64> {
    let mut place = 0;
    extents.find_map(|extent| {
        let begin = place;
        place += extent.len;
        let from = extent.offset.max(stopped);
        let part = parts.get(parts.partition_point(|part| part.end() <= from))?;
        let met = from.max(part.offset);
        (met < extent.offset + extent.len).then(|| begin + (met - extent.offset))
    })
}

/// RDMA for one range of the client's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Post {
    /// The client's memory.
    pub(crate) remote: RemoteRange,
    /// Where its bytes are in the chunk's own memory.
    pub(crate) at: usize,
}

/// One post for each contiguous range that holds bytes of `chunk` (places of the list), as far as those lie before the file's `end`.
/// `extents` are those of the chunk.
#[allow(clippy::cast_possible_truncation, reason = "places inside a chunk, which fits a buffer")]
pub(crate) fn posts(
    ranges: &[RemoteRange],
    extents: impl Iterator<Item = Extent>,
    chunk: &Range<u64>,
    end: u64,
) -> Vec<Post> {
    let mut posts = Vec::new();
    // Both go up: one look at each is enough.
    let mut rest = ranges.iter().scan(0, |before, range| {
        let begin = *before;
        *before += range.len;
        Some((begin, range))
    });
    let mut current = rest.next();
    for moved in moved_places(extents, chunk, end) {
        while let Some((begin, range)) = current {
            let (from, to) = (moved.start.max(begin), moved.end.min(begin + range.len));
            if from < to
                && let Some(remote) = range.slice(from - begin, to - from)
            {
                posts.push(Post { remote, at: (from - chunk.start) as usize });
            }
            if begin + range.len > moved.end {
                break;
            }
            current = rest.next();
        }
    }
    posts
}

/// Ranges in one call of a provider: as many as the widest frame takes.
const POSTED_MAX: usize = 256;

/// The posts from `from` on whose bytes follow each other in the chunk's memory: where those begin, and the client's memory of each.
pub(crate) fn next_posts(posts: &[Post], from: usize) -> Option<(usize, SmallVec<[RemoteRange; 128]>)> {
    let first = posts.get(from)?.at;
    let mut at = first as u64;
    let follows = |post: &&Post| {
        let follows = post.at as u64 == at;
        at += post.remote.len;
        follows
    };
    let run = posts[from..].iter().take(POSTED_MAX).take_while(follows);
    Some((first, run.map(|post| post.remote).collect()))
}

/// The places of a chunk whose bytes lie before the file's `end`, neighbours joined.
fn moved_places(
    extents: impl Iterator<Item = Extent>,
    chunk: &Range<u64>,
    end: u64,
) -> SmallVec<[Range<u64>; 4]> {
    let mut moved: SmallVec<[Range<u64>; 4]> = SmallVec::new();
    if end == u64::MAX {
        moved.push(chunk.clone());
        return moved;
    }
    let mut place = chunk.start;
    for extent in extents {
        let got = place..place + extent.len_before(end);
        match moved.last_mut() {
            Some(last) if last.end == got.start => last.end = got.end,
            _ if got.is_empty() => {}
            _ => moved.push(got),
        }
        place += extent.len;
    }
    moved
}

/// Ranges that follow each other in one region become one.
pub(crate) fn join(ranges: impl Iterator<Item = RemoteRange>) -> Vec<RemoteRange> {
    let mut joined: Vec<RemoteRange> = Vec::with_capacity(ranges.size_hint().0);
    for range in ranges.filter(|range| range.len > 0) {
        match joined.last_mut() {
            Some(last)
                if last.key == range.key && last.offset.checked_add(last.len) == Some(range.offset) =>
            {
                last.len += range.len;
            }
            _ => joined.push(range),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use dafs_proto::extent::{Parts, slice};
    use dafs_proto::transport::RegionKey;

    use super::*;

    fn extents(list: &[(u64, u64)]) -> Vec<Extent> {
        list.iter().map(|&(offset, len)| Extent::new(offset, len)).collect()
    }

    fn calls(list: &[(u64, u64)], gap_max: u64) -> Vec<(Range<usize>, u64, u64)> {
        let total: u64 = list.iter().map(|extent| extent.1).sum();
        let parts = Parts::of_read(
            extents(list).into_iter(),
            std::iter::once(usize::try_from(total).unwrap_or(usize::MAX)),
        );
        let mut found = Vec::new();
        while let Some(call) = next_call(
            parts.as_slice(),
            found.last().map_or(0, |call: &(Range<usize>, _, _)| call.0.end),
            gap_max,
        ) {
            found.push((call.parts, call.offset, call.len));
        }
        found
    }

    #[test]
    fn calls_of_neighbours_are_one_and_gaps_count_exactly() {
        assert_eq!(calls(&[(0, 4), (10, 4), (4, 6)], 0), [(0..3, 0, 14)]);
        for (gap_max, expected) in
            [(4, vec![(0..1, 0, 10), (1..2, 15, 10)]), (5, vec![(0..2, 0, 25)]), (6, vec![(0..2, 0, 25)])]
        {
            assert_eq!(calls(&[(0, 10), (15, 10)], gap_max), expected, "{gap_max}");
        }
        assert_eq!(calls(&[], 9), []);
    }

    #[test]
    fn calls_of_overlapping_parts_are_separate() {
        // The last two follow each other in the file and in memory: one part.
        assert_eq!(calls(&[(0, 10), (5, 10), (15, 1)], 9), [(0..1, 0, 10), (1..2, 5, 11)]);
    }

    #[test]
    fn calls_with_more_segments_than_one_takes_are_cut_exactly_there() {
        let list = |count: u64, stride: u64| (0..count).map(|i| (i * stride, 1)).collect::<Vec<_>>();
        let unordered = |count: u64| {
            // Neighbours in the file that are none in memory.
            let mut list = list(count, 1);
            list.reverse();
            list
        };
        for (count, calls_expected) in [(1023, 1), (1024, 1), (1025, 2)] {
            assert_eq!(calls(&unordered(count), 0).len(), calls_expected, "{count}");
        }
        // With gaps: 512 parts have 511 of them.
        for (count, calls_expected) in [(511, 1), (512, 1), (513, 2)] {
            assert_eq!(calls(&list(count, 2), 1).len(), calls_expected, "{count}");
        }
    }

    #[test]
    fn neighbours_that_are_none_in_memory_are_one_call_without_gaps() {
        let mut list: Vec<_> = (0..6u64).map(|at| (10 * (at / 3) + at % 3, 1)).collect();
        list.reverse();
        let parts = Parts::of_write(extents(&list).into_iter(), std::iter::once(6));
        let parts = parts.as_slice();
        let call = next_call(parts, 0, 100).unwrap();
        assert_eq!((parts.len(), call.parts.clone(), call.len), (6, 0..6, 13));
        assert_eq!(Apart::of(parts, &call), Apart { calls: 2, bytes: 6 });
        let second = next_call(parts, 3, 100).unwrap();
        assert_eq!(Apart::of(parts, &second), Apart { calls: 1, bytes: 3 });
        assert_eq!(Apart::of(parts, &Call { parts: 1..4, offset: 1, len: 10 }), Apart { calls: 2, bytes: 3 });
    }

    /// The first place that is missing of a list that storage stopped `written` bytes into the call of part `from`.
    fn missing(list: &[(u64, u64)], from: usize, written: u64) -> Option<u64> {
        let list = extents(list);
        let total = usize::try_from(list.iter().map(|extent| extent.len).sum::<u64>()).unwrap_or(usize::MAX);
        let parts = Parts::of_write(list.iter().copied(), std::iter::once(total));
        let rest = parts.as_slice().get(from..).unwrap_or_default();
        first_unwritten(rest, rest.first().map_or(0, |part| part.offset) + written, list.into_iter())
    }

    #[test]
    fn write_that_stops_is_counted_up_to_the_first_place_missing() {
        let list = [(20, 4), (0, 4), (10, 4)];
        assert_eq!(missing(&list, 0, 2), Some(0), "20..24 is missing");
        assert_eq!(missing(&list, 2, 0), Some(0));
        assert_eq!(missing(&list, 2, 3), Some(3), "the others are there");
        assert_eq!(missing(&list, 2, 4), None);
        assert_eq!(missing(&list, 3, 0), None);
        for (written, place) in [(0, 4), (1, 5), (3, 7)] {
            assert_eq!(missing(&[(0, 4), (10, 4)], 1, written), Some(place));
        }
    }

    // [LIST-6] [LIST-4]
    #[test]
    fn overwritten_name_counts_missing_until_the_new_one_is_there() {
        let list = [(0, 10), (100, 10), (0, 10)];
        assert_eq!(missing(&list, 0, 0), Some(0), "nothing is there");
        assert_eq!(missing(&list, 0, 4), Some(4), "of the first, with the bytes of the last");
        assert_eq!(missing(&list, 1, 0), Some(10));
        // Each has a part of its own, but for what the next covers.
        let list = [(0, 10), (5, 10), (12, 10)];
        for (written, place) in [(0, 0), (5, 5), (7, 7), (12, 17), (21, 29)] {
            assert_eq!(missing(&list, 0, written), Some(place), "{written}");
        }
    }

    fn range(offset: u64, len: u64) -> RemoteRange {
        RemoteRange { key: RegionKey(1), offset, len }
    }

    #[test]
    fn ranges_that_follow_each_other_are_joined_within_their_region() {
        let other = RemoteRange { key: RegionKey(2), offset: 12, len: 1 };
        assert_eq!(
            join([range(0, 4), range(4, 0), range(4, 8), other, range(13, 2)].into_iter()),
            [range(0, 12), other, range(13, 2)]
        );
    }

    #[test]
    fn posts_cover_a_chunk_as_far_as_the_file_reaches() {
        let ranges = [range(100, 6), range(200, 6)];
        let list = extents(&[(10, 4), (0, 4), (20, 4)]);
        let post = |offset, len, at| Post { remote: range(offset, len), at };
        let posts = |ranges: &[RemoteRange], list: &[Extent], chunk: &Range<u64>, end| {
            posts(ranges, slice(list, chunk.start, chunk.end - chunk.start), chunk, end)
        };
        assert_eq!(posts(&ranges, &list, &(0..12), u64::MAX), [post(100, 6, 0), post(200, 6, 6)]);
        assert_eq!(posts(&ranges, &list, &(2..8), u64::MAX), [post(102, 4, 0), post(200, 2, 4)]);
        // The file ends at 12: two bytes of the first, all of the second, nothing of the third.
        assert_eq!(posts(&ranges, &list, &(0..12), 12), [post(100, 2, 0), post(104, 2, 4), post(200, 2, 6)]);
        assert_eq!(posts(&ranges, &list, &(8..12), 12), []);
        assert_eq!(posts(&ranges, &list, &(0..12), 0), []);
    }

    #[test]
    fn posts_go_together_as_far_as_their_memory_is_contiguous() {
        let post = |at: usize, len| Post { remote: range(1000 + at as u64, len), at };
        let next = |posts: &[Post], from| {
            next_posts(posts, from)
                .map(|(at, ranges)| (at, ranges.iter().map(|r| r.offset).collect::<Vec<_>>()))
        };
        let gapped = [post(5, 3), post(8, 2), post(11, 1), post(12, 4)];
        assert_eq!(next(&gapped, 0), Some((5, vec![1005, 1008])));
        assert_eq!(next(&gapped, 1), Some((8, vec![1008])));
        assert_eq!(next(&gapped, 2), Some((11, vec![1011, 1012])));
        assert_eq!(next(&gapped, 4), None);
        for (count, taken) in [(255, 255), (256, 256), (257, 256)] {
            let posts: Vec<Post> = (0..count).map(|at| post(at, 1)).collect();
            assert_eq!(next_posts(&posts, 0).map(|(_, ranges)| ranges.len()), Some(taken));
        }
    }
}
