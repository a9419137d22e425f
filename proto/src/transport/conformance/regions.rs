//! Registration: what a peer can reach, and what it cannot.

use super::*;
use crate::transport::RegionKey;

/// What must not work, as changes to the range of a good region of `LEN` bytes.
fn forgeries(good: RemoteRange) -> Vec<RemoteRange> {
    let len = good.len;
    vec![
        RemoteRange { key: RegionKey(good.key.0 ^ 1), ..good },
        RemoteRange { key: RegionKey(good.key.0.rotate_left(32)), ..good },
        RemoteRange { key: RegionKey(0), ..good },
        RemoteRange { key: RegionKey(u64::MAX), ..good },
        RemoteRange { len: len + 1, ..good },
        RemoteRange { offset: good.offset + 1, ..good },
        RemoteRange { offset: good.offset + len, len: 1, ..good },
        RemoteRange { offset: good.offset + len + 1, len: 0, ..good },
        RemoteRange { offset: good.offset.wrapping_sub(1), len: 2, ..good },
        RemoteRange { offset: u64::MAX, len: 1, ..good },
        RemoteRange { offset: u64::MAX - len + 1, ..good },
        RemoteRange { offset: 1 << 63, ..good },
    ]
}

/// No data moves, both sides see the end, and one of them says that it was a region fault.
fn assert_refused(pair: &mut Pair, write: bool, range: RemoteRange) {
    let len = usize::try_from(range.len).unwrap();
    let local = pair.server_memory(len.max(1)).slice(0, len).unwrap();
    fill(&local, 99);
    let error = pair.rdma(write, &[local], range).expect_err("no region allows this");
    pair.until_both_over();
    let told = is_region_fault(&error)
        || [&pair.client, &pair.server].iter().any(|side| side.end.as_ref().is_some_and(is_region_fault));
    assert!(told, "{error:?}, client {:?}, server {:?}", pair.client.end, pair.server.end);
}

/// [PROV-16] [PROV-26] [PROV-62] [PROV-84] [VERBS-30]
pub fn accesses_that_no_region_allows_end_their_connection_only(fixture: &dyn Fixture) {
    let mut pair = Pair::new(fixture);
    // The region is the middle of its memory: what lies around it must not change either.
    let around = pair.client_memory(3 * 4096);
    let before = fill(&around, 1);
    let middle = around.slice(4096, 4096).unwrap();
    let both = pair.client_domain.register(middle.clone(), Access::all()).unwrap();
    let read_only = pair.client_domain.register(middle.clone(), Access::REMOTE_READ).unwrap();
    let write_only = pair.client_domain.register(middle.clone(), Access::REMOTE_WRITE).unwrap();
    let local_only = pair.client_domain.register(middle, Access::LOCAL).unwrap();
    let mut attacks: Vec<(bool, RemoteRange)> =
        forgeries(both.range()).into_iter().flat_map(|range| [(true, range), (false, range)]).collect();
    attacks.push((true, read_only.range()));
    attacks.push((false, write_only.range()));
    attacks.extend([(true, local_only.range()), (false, local_only.range())]);
    for (write, range) in attacks {
        let (client, server) = pair.another();
        let bystander =
            (std::mem::replace(&mut pair.client, client), std::mem::replace(&mut pair.server, server));
        assert_refused(&mut pair, write, range);
        assert!(around.span().to_vec() == before, "{range:?}");
        (pair.client, pair.server) = bystander;
        pair.assert_alive();
    }
    // The good range still serves.
    let local = pair.server_memory(4096);
    pair.rdma(false, std::slice::from_ref(&local), read_only.range()).unwrap();
    assert!(local.span().to_vec() == before[4096..8192]);
}

/// [PROV-16] [PROV-63]
pub fn dropped_region_is_out_of_reach(fixture: &dyn Fixture) {
    for write in [true, false] {
        let mut pair = Pair::new(fixture);
        let region = pair.client_region(4096);
        let memory = region.memory().clone();
        let range = region.range();
        let local = pair.server_memory(4096);
        pair.rdma(true, &[local], range).unwrap();
        let before = fill(&memory, 1);
        drop(region);
        // Registered anew, the memory has another key.
        let again = pair.client_domain.register(memory.clone(), Access::all()).unwrap();
        assert_ne!(again.range().key, range.key);
        assert_refused(&mut pair, write, range);
        assert!(memory.span().to_vec() == before);
    }
}

/// [PROV-19]
pub fn dropped_region_is_never_written_again(fixture: &dyn Fixture) {
    const SIZE: usize = 1 << 20;
    // The drop comes at every stage of the write's way.
    for steps in 0..12 {
        let mut pair = Pair::new(fixture);
        let region = pair.client_region(SIZE);
        let memory = region.memory().clone();
        let local = pair.server_memory(SIZE);
        fill(&local, 1);
        pair.server.post(true, 1, [local].into_iter().collect(), region.range()).unwrap();
        pair.server.flush();
        for step in 0..steps {
            match step % 3 {
                0 => pair.server.wait_a_little(),
                1 => _ = pair.client.pump(),
                _ => _ = pair.server.pump(),
            }
        }
        drop(region);
        let after_drop = fill(&memory, 2);
        for _ in 0..50 {
            pair.client.pump();
            pair.server.pump();
        }
        pair.server.wait_a_little();
        pair.client.pump();
        assert!(memory.span().to_vec() == after_drop, "written after {steps} steps and the drop");
    }
}

/// [PROV-17]
pub fn region_serves_all_connections_of_its_domain(fixture: &dyn Fixture) {
    let mut pair = Pair::new(fixture);
    let early = pair.client_region(1000);
    for round in 0..3 {
        (pair.client, pair.server) = pair.another();
        let late = pair.client_region(1000);
        for region in [&early, &late] {
            let local = pair.server_memory(1000);
            let expected = fill(&local, round);
            pair.rdma(true, &[local], region.range()).unwrap();
            assert!(region.memory().span().to_vec() == expected);
        }
    }
}

/// [PROV-18]
pub fn region_of_another_domain_is_out_of_reach(fixture: &dyn Fixture) {
    for write in [true, false] {
        let mut pair = Pair::new(fixture);
        let secret = pair.client_region(4096);
        let before = fill(secret.memory(), 1);
        let stranger = fixture.domain();
        let (client, server) = connect(&*stranger, &mut *pair.listener, &params(fixture));
        let owner =
            (std::mem::replace(&mut pair.client, client), std::mem::replace(&mut pair.server, server));
        assert_refused(&mut pair, write, secret.range());
        assert_eq!(secret.memory().span().to_vec(), before);
        (pair.client, pair.server) = owner;
        pair.assert_alive();
    }
}
