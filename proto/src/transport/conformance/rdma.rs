//! RDMA by the server on the client's memory: sizes, lists, order, bounds.
#![allow(unsafe_code, reason = "a test memory type")]

use super::mapped::MappedFile;
use super::*;
use crate::transport::{Memory, RegionError, Span};

const GUARD: usize = 64;

/// Sizes around pages, and the largest that the provider takes at once.
fn sizes(pair: &Pair) -> Vec<usize> {
    let size_max = pair.server.capabilities().rdma_size_max as usize;
    let mut sizes = vec![0, 1, 2, 63, 4095, 4096, 4097, 65_536, (1 << 20) - 1, 1 << 20, (1 << 20) + 1];
    sizes.retain(|&size| size < size_max);
    sizes.push(size_max);
    sizes
}

fn segment_counts(pair: &Pair) -> [usize; 3] {
    let segments_max = usize::from(pair.server.capabilities().segments_max);
    [1, 2.min(segments_max), segments_max]
}

/// [PROV-10] [PROV-29]
pub fn rdma_writes_of_every_size_and_list_land(fixture: &dyn Fixture) {
    let mut pair = Pair::new(fixture);
    for size in sizes(&pair) {
        for count in segment_counts(&pair) {
            let region = pair.client_region(size + 2 * GUARD);
            let mut expected = fill(region.memory(), 1);
            let local = pair.server_memory(size.max(1)).slice(0, size).unwrap();
            expected[GUARD..GUARD + size].copy_from_slice(&fill(&local, 2));
            let range = region.range().slice(GUARD as u64, size as u64).unwrap();
            pair.rdma(true, &parts(&local, count), range).unwrap();
            // `==`: a difference in megabytes is not to be printed.
            assert!(region.memory().span().to_vec() == expected, "{size} bytes in {count} segments");
        }
    }
    pair.assert_alive();
}

/// [PROV-11] [PROV-29]
pub fn rdma_reads_of_every_size_and_list_land(fixture: &dyn Fixture) {
    let mut pair = Pair::new(fixture);
    for size in sizes(&pair) {
        for count in segment_counts(&pair) {
            let region = pair.client_region(size + 2 * GUARD);
            let remote = fill(region.memory(), 3);
            let local = pair.server_memory(size + 2 * GUARD);
            let mut expected = fill(&local, 4);
            expected[GUARD..GUARD + size].copy_from_slice(&remote[GUARD..GUARD + size]);
            let range = region.range().slice(GUARD as u64, size as u64).unwrap();
            pair.rdma(false, &parts(&local.slice(GUARD, size).unwrap(), count), range).unwrap();
            assert!(local.span().to_vec() == expected, "{size} bytes in {count} segments");
            assert!(region.memory().span().to_vec() == remote, "a read changes nothing");
        }
    }
    pair.assert_alive();
}

/// [PROV-45] [PROV-58]
pub fn rdma_lists_of_every_count_land(fixture: &dyn Fixture) {
    let mut pair = Pair::new(fixture);
    for count in [1usize, 2, 3, 64, 300] {
        for size in [1usize, 100, 3000] {
            let regions = [pair.client_region(2 * count * size), pair.client_region(2 * count * size)];
            let mut expected = [fill(regions[0].memory(), 1), fill(regions[1].memory(), 2)];
            let local = pair.server_memory(count * size);
            let data = fill(&local, count);
            // Backwards, every third in the other region.
            let place = |index: usize| (usize::from(index.is_multiple_of(3)), 2 * (count - 1 - index) * size);
            let range = |index: usize| {
                let (region, at) = place(index);
                regions[region].range().slice(at as u64, size as u64).unwrap()
            };
            let ranges: Vec<RemoteRange> = (0..count).map(range).collect();
            pair.rdma_list(true, &local, &ranges).unwrap();
            for index in 0..count {
                let (region, at) = place(index);
                expected[region][at..at + size].copy_from_slice(&data[index * size..][..size]);
            }
            for (region, expected) in regions.iter().zip(&expected) {
                assert!(region.memory().span().to_vec() == *expected, "{count} ranges of {size} bytes");
            }
            let back = pair.server_memory(count * size);
            fill(&back, 9);
            pair.rdma_list(false, &back, &ranges).unwrap();
            assert!(back.span().to_vec() == data, "{count} ranges of {size} bytes");
        }
    }
    pair.assert_alive();
}

/// [PROV-12]
pub fn rdma_write_is_visible_before_the_message_after_it(fixture: &dyn Fixture) {
    let mut pair = Pair::new(fixture);
    for size in [1usize, 100, 5000, 300_000] {
        let region = pair.client_region(size);
        let local = pair.server_memory(size);
        for round in 0..20 {
            let expected = fill(&local, round);
            let posted =
                pair.server.post(true, 1, [local.clone()].into_iter().collect(), region.range()).unwrap();
            pair.server.endpoint.send_copy(&[9], &expected[..size.min(8)]).unwrap();
            pair.server.flush();
            pair.until("the message", |pair| !pair.client.received.is_empty());
            assert!(region.memory().span().to_vec() == expected, "round {round} of {size} bytes");
            pair.client.received.clear();
            pair.until_server_completions(usize::from(posted == Posted::Pending));
            pair.server.completions.clear();
        }
    }
}

/// [PROV-13]
pub fn rdma_write_with_immediate_arrives_after_its_data(fixture: &dyn Fixture) {
    let mut pair = Pair::new(fixture);
    for (round, size) in [0usize, 1, 4096, 100_000].into_iter().cycle().take(40).enumerate() {
        let region = pair.client_region(size.max(1));
        let range = region.range().slice(0, size as u64).unwrap();
        let local = pair.server_memory(size.max(1)).slice(0, size).unwrap();
        let expected = fill(&local, round);
        pair.server.endpoint.send_copy(b"before", b"").unwrap();
        let segments = [local].into_iter().collect();
        let posted = pair
            .server
            .endpoint
            .rdma_write(OpToken(1), segments, range, Some(0xdead_0000 + size as u32))
            .unwrap();
        pair.server.endpoint.send_copy(b"after", b"").unwrap();
        pair.until("the immediate", |pair| pair.client.received.len() >= 2);
        assert!(region.memory().span().slice(0, size).unwrap().to_vec() == expected, "{size} bytes");
        pair.until("three arrivals", |pair| pair.client.received.len() >= 3);
        assert_eq!(pair.client.received.pop_front(), Some(Arrival::Message(b"before".into(), vec![])));
        let immediate = Arrival::Immediate(0xdead_0000 + size as u32, size as u32);
        assert_eq!(pair.client.received.pop_front(), Some(immediate));
        assert_eq!(pair.client.received.pop_front(), Some(Arrival::Message(b"after".into(), vec![])));
        pair.until_server_completions(usize::from(posted == Posted::Pending));
        pair.server.completions.clear();
    }
}

/// [PROV-57]
pub fn rdma_posts_outside_the_capabilities_are_invalid(fixture: &dyn Fixture) {
    let mut pair = Pair::new(fixture);
    let segments_max = usize::from(pair.server.capabilities().segments_max);
    let size_max = u64::from(pair.server.capabilities().rdma_size_max);
    let region = pair.client_region(4096);
    let before = fill(region.memory(), 1);
    let local = pair.server_memory(4096);
    let whole = || -> LocalSegments { [local.clone()].into_iter().collect() };
    for write in [true, false] {
        let mut refused = |segments: LocalSegments, range: RemoteRange| {
            assert!(matches!(pair.server.post(write, 1, segments, range), Err(PostError::Invalid(_))));
        };
        refused(whole(), region.range().slice(0, 4095).unwrap());
        refused([local.slice(0, 4095).unwrap()].into_iter().collect(), region.range());
        refused(LocalSegments::new(), region.range());
        refused(parts(&local, segments_max + 1).into_iter().collect(), region.range());
        refused(whole(), RemoteRange { len: size_max + 1, ..region.range() });
    }
    assert_eq!(region.memory().span().to_vec(), before);
    assert!(pair.server.endpoint.poll_completion().is_none());
    pair.assert_alive();
}

/// [PROV-14]
pub fn rdma_operations_complete_exactly_once(fixture: &dyn Fixture) {
    let mut pair = Pair::new(fixture);
    let region = pair.client_region(64 * 1024);
    let local = pair.server_memory(64 * 1024);
    let (mut pending, mut completed, mut next) = (std::collections::HashSet::new(), 0, 0usize);
    pair.until("all completions", |pair| {
        while next < 500 {
            let len = next * 131 % 9000;
            let part = local.slice(next % 7 * 4096, len).unwrap();
            let range = region.range().slice((next % 5) as u64 * 1000, len as u64).unwrap();
            match pair.server.post(!next.is_multiple_of(3), next as u64, [part].into_iter().collect(), range)
            {
                Ok(Posted::Done) => {}
                Ok(Posted::Pending) => assert!(pending.insert(OpToken(next as u64))),
                Err(PostError::Full) => break,
                Err(error) => panic!("{error}"),
            }
            next += 1;
        }
        for completion in pair.server.completions.drain(..) {
            completion.result.unwrap();
            assert!(pending.remove(&completion.token), "{:?} again, or never posted", completion.token);
            completed += 1;
        }
        next == 500 && pending.is_empty()
    });
    pair.assert_alive();
    assert!(pair.server.completions.is_empty());
}

/// [PROV-15]
pub fn rdma_queue_fills_and_recovers(fixture: &dyn Fixture) {
    let mut pair = Pair::new(fixture);
    let depth = usize::from(pair.server.capabilities().rdma_depth);
    let region = pair.client_region(100_000);
    let local = pair.server_memory(100_000);
    for round in 0..3 {
        let mut pending = 0;
        // A provider that is done at once never fills.
        for _ in 0..4 * depth {
            match pair.server.post(round != 1, 1, [local.clone()].into_iter().collect(), region.range()) {
                Ok(Posted::Pending) => pending += 1,
                Ok(Posted::Done) => {}
                Err(PostError::Full) => break,
                Err(error) => panic!("{error}"),
            }
        }
        assert!(pending <= depth, "{pending} in flight, more than rdma_depth");
        pair.until_server_completions(pending);
        for completion in pair.server.completions.drain(..) {
            completion.result.unwrap();
        }
    }
    pair.assert_alive();
}

struct MayFault(HeapMemory);

// SAFETY: delegates to memory that keeps the promise.
unsafe impl Memory for MayFault {
    fn span(&self) -> Span<'_> {
        self.0.span()
    }
    fn may_fault(&self) -> bool {
        true
    }
}

/// [PROV-30]
pub fn rdma_write_from_memory_that_may_fault_is_taken(fixture: &dyn Fixture) {
    let mut pair = Pair::new(fixture);
    for size in [1, 4096, 200_000] {
        let local = MemoryRef::new(Arc::new(MayFault(HeapMemory::allocate(size).unwrap())));
        let expected = fill(&local, size);
        let region = pair.client_region(size);
        pair.rdma(true, &[local], region.range()).unwrap();
        assert!(region.memory().span().to_vec() == expected);
    }
}

/// [PROV-59] [PROV-60] [PROV-61] [SHM-66] [VERBS-65]
pub fn rdma_write_from_memory_that_is_gone_leaves_nothing_from_before(fixture: &dyn Fixture) {
    // The last of each is cut within a page of a range, and the rest of that reads as zeros.
    let each = [0, 4096, 50_000, 150_000, 199_999].map(|kept| (kept, false));
    for (kept, list) in each.into_iter().chain([0, 50_000, 99_999].map(|kept| (kept, true))) {
        let mut pair = Pair::new(fixture);
        let file = MappedFile::new(200_000);
        let local = MemoryRef::new(Arc::clone(&file) as _).slice(0, 200_000).unwrap();
        let region = pair.client_region(200_000);
        let before = fill(region.memory(), 8);
        file.truncate(kept);
        pair.server.endpoint.send_copy(b"before", b"").unwrap();
        let half = |at| region.range().slice(at, 100_000).unwrap();
        let posted = match list {
            false => pair
                .server
                .post(true, 5, LocalSegments::from_iter([local]), region.range())
                .map(PostedList::from),
            true => pair.server.post_list(true, 5, &local, &[half(0), half(100_000)]),
        };
        // Behind it goes what would tell the peer that all of it is there.
        let sent = pair.server.endpoint.send_copy(b"after", b"");
        match posted {
            Err(PostError::Faulted) => {
                sent.unwrap();
                pair.until("both messages", |pair| pair.client.received.len() == 2);
                assert!(pair.server.endpoint.poll_completion().is_none());
                assert_nothing_else_was_written(&pair, &region, &before, kept as usize);
            }
            Ok(posted) => {
                assert!(
                    pair.server.capabilities().faults_late && posted.pending == 1,
                    "{kept} bytes: {posted:?}"
                );
                pair.until("both messages", |pair| pair.client.received.len() == 2);
                pair.until_server_completions(1);
                let end = pair.server.completions.pop_front().unwrap().result;
                assert!(end.is_err_and(|error| error.is_local_fault()), "{kept} bytes: taken for done");
                let found = region.memory().span().to_vec();
                let (there, gone) = found.split_at(kept as usize);
                assert!(there == &MappedFile::content(200_000)[..there.len()], "{kept} bytes");
                assert!(gone.iter().all(|byte| *byte == 0), "{kept} bytes: what was there before");
            }
            Err(error) => panic!("{error}"),
        }
        pair.assert_alive();
    }
}

/// After a post that was answered `Faulted` only shm has written some of what was there; of the page in which the file ends, zeros too.
fn assert_nothing_else_was_written(pair: &Pair, region: &Region, before: &[u8], kept: usize) {
    let found = region.memory().span().to_vec();
    if pair.server.capabilities().provider != Provider::Shm {
        assert!(found == before, "{kept} bytes: something was written");
        return;
    }
    let mut data = MappedFile::content(found.len());
    data[kept..].fill(0);
    let written = kept.next_multiple_of(4096).min(found.len());
    let is_known = |at: usize| found[at] == before[at] || (at < written && found[at] == data[at]);
    assert!((0..found.len()).all(is_known), "{kept} bytes: what was neither there nor here before");
}

/// [PROV-20] [PROV-64] [PROV-65]
pub fn remote_memory_is_the_peers_memory(fixture: &dyn Fixture) {
    let mut pair = Pair::new(fixture);
    let region = pair.client_region(10_000);
    let range = region.range().slice(1000, 5000).unwrap();
    let mapped = pair.server.endpoint.remote_memory(&range, Access::REMOTE_WRITE);
    if !pair.server.capabilities().remote_mapped {
        assert!(matches!(mapped, Ok(None)), "capabilities exclude it: {mapped:?}");
        return;
    }
    let mapped = mapped.unwrap().expect("memory that the peer's domain allocated");
    assert_eq!(mapped.len(), 5000);
    let mut expected = fill(region.memory(), 1);
    expected[1000..6000].copy_from_slice(&fill(&mapped, 2));
    assert!(region.memory().span().to_vec() == expected);
    expected[1000..6000].copy_from_slice(&fill(&region.memory().slice(1000, 5000).unwrap(), 3));
    assert!(mapped.span().to_vec() == expected[1000..6000]);

    let read_only = pair.client_domain.register(pair.client_memory(100), Access::REMOTE_READ).unwrap();
    let dropped = pair.client_region(100).range();
    let mut fault = |range: RemoteRange, access| {
        let result = pair.server.endpoint.remote_memory(&range, access);
        assert!(matches!(result, Err(RegionError::Fault(_))), "{range:?}: {result:?}");
    };
    fault(RemoteRange { offset: 1, ..region.range() }, Access::REMOTE_READ);
    fault(RemoteRange { offset: u64::MAX, len: 2, ..region.range() }, Access::REMOTE_READ);
    fault(RemoteRange { key: crate::transport::RegionKey(12345), ..region.range() }, Access::REMOTE_READ);
    fault(read_only.range(), Access::REMOTE_WRITE);
    fault(dropped, Access::REMOTE_READ);
    pair.assert_alive();
}

/// [PROV-21]
pub fn ordinary_memory_is_reached_where_promised(fixture: &dyn Fixture) {
    let mut pair = Pair::new(fixture);
    let memory = heap_memory(100_000);
    let part = memory.slice(777, 50_001).unwrap();
    let region = match pair.client_domain.register(part, Access::all()) {
        Ok(region) => region,
        Err(RegionError::Unsupported { .. }) if !pair.client.capabilities().registers_ordinary_memory => {
            return;
        }
        Err(error) => panic!("{error}"),
    };
    let mut expected = fill(&memory, 1);
    let local = pair.server_memory(50_001);
    pair.rdma(false, std::slice::from_ref(&local), region.range()).unwrap();
    assert!(local.span().to_vec() == expected[777..777 + 50_001]);
    expected[777..777 + 50_001].copy_from_slice(&fill(&local, 2));
    pair.rdma(true, &[local], region.range()).unwrap();
    assert!(memory.span().to_vec() == expected);
}
