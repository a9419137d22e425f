use std::collections::{HashMap, VecDeque};

use proptest::prelude::*;

use super::*;

fn owner(session: usize, operation: u64) -> Owner {
    Owner { session: SessionKey(session), operation: OpToken(operation) }
}

fn pool(size_max: usize) -> BufferPool {
    BufferPool::new(BufferConfig::with_budget(size_max))
}

fn zone(pool: &BufferPool, size: usize) -> ZoneStatistics {
    pool.statistics().into_iter().find(|zone| zone.size == size as u64).unwrap()
}

const MIB: usize = 1 << 20;

// [BUF-1]
#[test]
fn pool_gives_the_smallest_zone_that_fits() {
    let mut pool = pool(1 << 30);
    for (index, size) in BUFFER_SIZES.into_iter().enumerate() {
        assert_eq!(pool.acquire(owner(1, 1), size - 1).unwrap().size(), size);
        assert_eq!(pool.acquire(owner(1, 1), size).unwrap().size(), size);
        let above = BUFFER_SIZES.get(index + 1).copied().unwrap_or(size);
        assert_eq!(pool.acquire(owner(1, 1), size + 1).unwrap().size(), above);
    }
}

// [BUF-26]
#[test]
fn zone_that_is_empty_is_helped_out_by_a_bigger_one() {
    let mut pool = pool(8 * MIB);
    let big: Vec<_> = (0..7).map(|_| pool.acquire(owner(1, 1), MIB).unwrap()).collect();
    let one = pool.acquire(owner(2, 1), MIB).unwrap();
    big.into_iter().for_each(|buffer| pool.release(buffer));
    pool.release(one);
    assert_eq!(pool.size(), 8 * MIB, "all of the budget is in the zone of the biggest");
    let lent = pool.acquire(owner(1, 1), 1000).unwrap();
    assert_eq!(lent.size(), MIB);
    assert_eq!(zone(&pool, BUFFER_SIZES[0]).lent_from_bigger, 1);
}

// [BUF-27] [BUF-28] [BUF-30]
#[test]
fn transfer_is_chopped_where_no_fitting_buffer_is_left() {
    // The smallest budget: the first of all leaves the reserve, so that its largest piece is no whole budget.
    let mut pool = pool(0);
    let buffer = pool.acquire(owner(1, 1), MIB).unwrap();
    assert_eq!(buffer.size(), 256 << 10);
    assert_eq!(zone(&pool, MIB).chops, 1);
    let mut sizes = vec![buffer.size()];
    while let Some(buffer) = pool.acquire(owner(1, 1), MIB) {
        sizes.push(buffer.size());
    }
    assert_eq!(sizes.iter().sum::<usize>(), MIB - MIB / 8, "{sizes:?}");
}

// [BUF-3] [BUF-33]
#[test]
fn single_session_has_all_but_the_reserve_for_newcomers() {
    let mut pool = pool(64 * MIB);
    let mut greedy = Vec::new();
    while let Some(buffer) = pool.acquire(owner(1, 1), MIB) {
        greedy.push(buffer);
    }
    assert_eq!(pool.held_by(SessionKey(1)), 56 * MIB);
    assert_eq!(pool.acquire(owner(2, 2), MIB).unwrap().size(), MIB);
}

// [BUF-4] [BUF-34] [BUF-35]
#[test]
fn waiting_sessions_are_served_in_turn_and_greedy_last() {
    let mut pool = pool(8 * MIB);
    let mut greedy: Vec<_> = (0..7).map(|_| pool.acquire(owner(1, 0), MIB).unwrap()).collect();
    let newcomer = pool.acquire(owner(2, 0), MIB).unwrap();
    for operation in 1..4 {
        for session in 1..=3 {
            assert!(pool.acquire(owner(session, operation), MIB).is_none(), "{session}");
            pool.wait(owner(session, operation), MIB);
        }
    }
    let mut order = Vec::new();
    let mut kept = vec![newcomer];
    while let Some(buffer) = greedy.pop() {
        pool.release(buffer);
        while let Some(grant) = pool.serve() {
            assert_eq!(grant.buffers.len(), 1);
            if grant.owner.session == SessionKey(1) {
                assert!(pool.held_by(SessionKey(1)) <= 8 * MIB / 3, "above its share while others wait");
            }
            order.push((grant.owner.session.0, grant.owner.operation.0));
            kept.extend(grant.buffers);
        }
    }
    let of =
        |session: usize| order.iter().filter(|(of, _)| *of == session).map(|(_, op)| *op).collect::<Vec<_>>();
    assert_eq!(of(2)[0], 1, "{order:?}");
    assert!(order[..3].iter().all(|(session, _)| *session != 1), "{order:?}");
    for session in 1..=3 {
        assert!(of(session).is_sorted(), "{order:?}");
        assert!(pool.held_by(SessionKey(session)) <= 8 * MIB, "{order:?}");
    }
    kept.into_iter().for_each(|buffer| pool.release(buffer));
    while let Some(grant) = pool.serve() {
        order.push((grant.owner.session.0, grant.owner.operation.0));
        grant.buffers.into_iter().for_each(|buffer| pool.release(buffer));
    }
    assert_eq!(order.len(), 9, "nobody is forgotten: {order:?}");
    assert_eq!((pool.lent_size(), pool.has_waiters()), (0, false));
}

// [BUF-5] [BUF-36] [BUF-37]
#[test]
fn operation_that_wants_many_buffers_gets_them_despite_others() {
    let mut pool = pool(16 * MIB);
    let sizes = vec![MIB; 4];
    assert!(pool.can_ever_lend(&sizes));
    assert!(!pool.can_ever_lend(&[MIB; 5]));
    let mut others: Vec<_> = (0..14).map(|_| pool.acquire(owner(1, 1), MIB).unwrap()).collect();
    assert!(pool.acquire_all(owner(2, 1), &sizes).is_none());
    pool.wait_for_all(owner(2, 1), sizes);
    for round in 0..1000 {
        // Each buffer that comes back is asked for again at once, by ever new sessions.
        pool.release(others.remove(0));
        if let Some(grant) = pool.serve() {
            assert_eq!((grant.owner, grant.buffers.len()), (owner(2, 1), 4));
            return;
        }
        others.extend(pool.acquire(owner(3 + round, 1), MIB));
        if others.is_empty() {
            break;
        }
    }
    panic!("passed over for ever");
}

// [BUF-4] [BUF-5] [BUF-37]
#[test]
fn operation_larger_than_a_share_is_served_among_waiting_sessions() {
    const OTHERS: usize = 6;
    let mut pool = pool(16 * MIB);
    let mut lent: VecDeque<_> = (0..14).map(|_| pool.acquire(owner(1, 1), MIB).unwrap()).collect();
    (0..OTHERS).for_each(|other| pool.wait(owner(other + 2, 1), MIB));
    pool.wait_for_all(owner(1, 2), vec![MIB; 4]);
    for round in 0..1000 {
        pool.release(lent.pop_front().unwrap());
        while let Some(Grant { owner: Owner { session, .. }, buffers }) = pool.serve() {
            if session == SessionKey(1) {
                assert_eq!(buffers.len(), 4);
                return;
            }
            assert!(pool.held_by(session) <= 16 * MIB / (OTHERS + 1), "above its share while others wait");
            pool.wait(owner(session.0, round), MIB);
            lent.extend(buffers);
        }
    }
    panic!("passed over for ever");
}

// [BUF-2]
#[test]
fn ended_session_stops_waiting_and_returns_its_buffers() {
    let mut pool = pool(8 * MIB);
    let kept: Vec<_> = std::iter::from_fn(|| pool.acquire(owner(1, 7), MIB)).collect();
    pool.wait(owner(1, 8), MIB);
    pool.end_session(SessionKey(1));
    assert!(!pool.has_waiters());
    assert_eq!(pool.held_by(SessionKey(1)), 0);
    assert!(pool.owners().all(|(owner, _)| owner.session == NOBODY && owner.operation == OpToken(7)));
    kept.into_iter().for_each(|buffer| pool.release(buffer));
    assert_eq!((pool.lent_size(), pool.owners().count(), pool.held_by(NOBODY)), (0, 0, 0));
}

// [BUF-32]
#[test]
fn pool_does_not_reuse_a_buffer_that_somebody_still_holds() {
    let mut pool = pool(1 << 30);
    let buffer = pool.acquire(owner(1, 1), 1).unwrap();
    let held = buffer.memory();
    pool.release(buffer);
    let other = pool.acquire(owner(1, 1), 1).unwrap();
    let address = held.span().as_ptr();
    assert_ne!(other.memory().span().as_ptr(), address);
    drop(held);
    assert_eq!(
        pool.acquire(owner(1, 1), 1).unwrap().memory().span().as_ptr(),
        address,
        "let go of, it is used again"
    );
}

// [BUF-29]
#[test]
fn eager_buffers_and_buffers_share_the_budget() {
    let mut pool = pool(8 * MIB);
    assert!(!pool.charge_eager_buffers(4 * MIB + 1));
    assert!(pool.charge_eager_buffers(4 * MIB));
    let mut lent = Vec::new();
    for session in 0.. {
        match pool.acquire(owner(session, 0), MIB) {
            Some(buffer) => lent.push(buffer),
            None => break,
        }
    }
    assert_eq!(pool.lent_size(), 4 * MIB);
    assert!(!pool.charge_eager_buffers(1));
    lent.into_iter().for_each(|buffer| pool.release(buffer));
    pool.discharge_eager_buffers(4 * MIB);
    assert_eq!(pool.eager_buffers_size(), 0);
    // What is free gives way to eager buffers.
    assert!(pool.charge_eager_buffers(4 * MIB));
    assert!(pool.size() + pool.eager_buffers_size() <= 8 * MIB);
}

// [BUF-31]
#[test]
fn eager_buffers_leave_a_buffer_where_there_is_but_one() {
    for sizes in [vec![MIB], vec![4096, MIB]] {
        let config = BufferConfig { sizes: sizes.clone(), ..BufferConfig::with_budget(MIB) };
        let mut pool = BufferPool::new(config);
        let room = pool.eager_buffers_room();
        assert_eq!(room > 0, sizes.len() > 1, "{sizes:?}");
        assert!(pool.charge_eager_buffers(room));
        let buffer = pool.acquire(owner(1, 1), MIB).unwrap();
        assert_eq!(buffer.size(), sizes[0]);
        pool.release(buffer);
    }
}

#[derive(Clone, Debug)]
enum Step {
    Acquire { session: usize, size: usize },
    AcquireAll { session: usize, sizes: Vec<usize> },
    Release { place: usize },
    Hold { place: usize },
    LetGo,
    End { session: usize },
    EagerBuffers { size: usize },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let session = 0usize..5;
    let size = 1usize..(1 << 20) + 100_000;
    let step = prop_oneof![
        6 => (session.clone(), size.clone()).prop_map(|(session, size)| Step::Acquire { session, size }),
        1 => (session.clone(), prop::collection::vec(size.clone(), 1..6))
            .prop_map(|(session, sizes)| Step::AcquireAll { session, sizes }),
        6 => any::<usize>().prop_map(|place| Step::Release { place }),
        1 => any::<usize>().prop_map(|place| Step::Hold { place }),
        1 => Just(Step::LetGo),
        1 => session.prop_map(|session| Step::End { session }),
        1 => (0usize..3 << 20).prop_map(|size| Step::EagerBuffers { size }),
    ];
    prop::collection::vec(step, 1..200)
}

/// What the test knows of the pool.
#[derive(Default)]
struct Model {
    lent: Vec<(Owner, Buffer)>,
    waiting: HashMap<u64, Owner>,
    held: Vec<MemoryRef>,
    ended: Vec<SessionKey>,
    operations: u64,
    eager_buffers: usize,
}

impl Model {
    fn check(&self, pool: &BufferPool) {
        assert!(pool.size() + pool.eager_buffers_size() <= pool.size_max(), "above the budget");
        assert_eq!(pool.eager_buffers_size(), self.eager_buffers);
        let size: usize = self.lent.iter().map(|(_, buffer)| buffer.size()).sum();
        assert_eq!(pool.lent_size(), size, "bytes lent");
        assert_eq!(pool.owners().count(), self.lent.len(), "buffers with an owner");
        let zones = pool.statistics();
        assert_eq!(zones.iter().map(|zone| zone.lent).sum::<u64>(), self.lent.len() as u64);
        assert_eq!(zones.iter().map(|zone| zone.total * zone.size).sum::<u64>(), pool.size() as u64);
        let mut places: Vec<_> =
            self.lent.iter().map(|(_, buffer)| buffer.memory().span().as_ptr()).collect();
        places.extend(self.held.iter().map(|memory| memory.span().as_ptr()));
        let count = places.len();
        places.sort_unstable();
        places.dedup();
        // One that was given back while held is nobody's to be lent.
        assert!(places.len() >= count - self.held.len(), "a buffer with two owners");
        for session in 0..5 {
            let key = SessionKey(session);
            let own = |(owner, buffer): &(Owner, Buffer)| (owner.session == key).then(|| buffer.size());
            assert_eq!(pool.held_by(key), self.lent.iter().filter_map(own).sum::<usize>());
        }
    }

    fn serve(&mut self, pool: &mut BufferPool) {
        while let Some(grant) = pool.serve() {
            assert_eq!(self.waiting.remove(&grant.owner.operation.0), Some(grant.owner), "waited");
            self.lent.extend(grant.buffers.into_iter().map(|buffer| (grant.owner, buffer)));
        }
    }

    fn release(&mut self, pool: &mut BufferPool, place: usize) {
        if !self.lent.is_empty() {
            let place = place % self.lent.len();
            pool.release(self.lent.swap_remove(place).1);
        }
    }

    fn play(&mut self, pool: &mut BufferPool, step: Step) {
        self.operations += 1;
        match step {
            Step::Acquire { session, size } => {
                let owner = owner(session, self.operations);
                match pool.acquire(owner, size) {
                    Some(buffer) => self.lent.push((owner, buffer)),
                    None => {
                        pool.wait(owner, size);
                        self.waiting.insert(self.operations, owner);
                    }
                }
            }
            Step::AcquireAll { session, sizes } if pool.can_ever_lend(&sizes) => {
                let owner = owner(session, self.operations);
                match pool.acquire_all(owner, &sizes) {
                    Some(buffers) => self.lent.extend(buffers.into_iter().map(|buffer| (owner, buffer))),
                    None => {
                        pool.wait_for_all(owner, sizes);
                        self.waiting.insert(self.operations, owner);
                    }
                }
            }
            Step::AcquireAll { .. } => {}
            Step::Release { place } => self.release(pool, place),
            Step::Hold { place } if !self.lent.is_empty() => {
                let place = place % self.lent.len();
                self.held.push(self.lent[place].1.memory());
            }
            Step::Hold { .. } => {}
            Step::LetGo => self.held.clear(),
            Step::End { session } => {
                pool.end_session(SessionKey(session));
                self.waiting.retain(|_, owner| owner.session != SessionKey(session));
                for (owner, _) in
                    self.lent.iter_mut().filter(|(owner, _)| owner.session == SessionKey(session))
                {
                    owner.session = NOBODY;
                }
                self.ended.push(SessionKey(session));
            }
            Step::EagerBuffers { size } => match pool.charge_eager_buffers(size) {
                true => self.eager_buffers += size,
                false => {
                    pool.discharge_eager_buffers(self.eager_buffers);
                    self.eager_buffers = 0;
                }
            },
        }
        self.serve(pool);
        self.check(pool);
    }
}

proptest! {
    // [BUF-2] [BUF-5] [BUF-29]
    #[test]
    fn pool_keeps_budget_and_owners_and_forgets_nobody(budget in 0usize..12 << 20, steps in steps()) {
        let mut pool = pool(budget);
        let mut model = Model::default();
        for step in steps {
            model.play(&mut pool, step);
        }
        // Everything comes back, in the order of the lending: then everybody who waits is served.
        model.held.clear();
        pool.discharge_eager_buffers(model.eager_buffers);
        model.eager_buffers = 0;
        model.serve(&mut pool);
        while !model.lent.is_empty() {
            pool.release(model.lent.remove(0).1);
            model.serve(&mut pool);
            model.check(&pool);
        }
        prop_assert!(model.waiting.is_empty(), "left waiting: {:?}", model.waiting);
        prop_assert!(!pool.has_waiters());
        prop_assert_eq!(pool.lent_size(), 0);
    }
}
