//! What is kept, and for how long, against memory that changes. On tcp a registration is just an address, so only the counters show that a
//! stale one is not used. The suites show it in the data too, on verbs.
#![allow(unsafe_code, reason = "memory of the tests' own is lent to registrations")]

use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use dafs_proto::transport::tcp::TcpDomain;
use dafs_proto::transport::{
    Access, Address, ConnectError, ConnectParams, Domain, Endpoint, Listener, Memory, MemoryRef, Provider,
    Region, RegionError,
};

use super::area::Area;
use super::*;
use crate::memory::RawMemory;

const PAGE: usize = 4096;

fn registrar(config: RegistrationConfig) -> Arc<Registrar> {
    Registrar::new(Arc::new(TcpDomain::default()), config)
}

fn part(area: &Area, start: usize, len: usize) -> Extent {
    Extent::new(area.address() + start, len)
}

/// Looks the memory up as an operation does that begins now; returns whether it was registered anew. While an event is being read it
/// is not looked up.
fn is_registered_anew(registrar: &Registrar, extent: Extent) -> bool {
    let before = registrar.counters().registrations;
    while !registrar.preregister(extent) {
        std::thread::yield_now();
    }
    registrar.counters().registrations > before
}

// [CLI-79]
#[test]
fn nothing_is_kept_where_there_is_no_room() {
    let area = Area::new(2 * PAGE);
    for config in [
        RegistrationConfig { entries_max: 0, ..RegistrationConfig::default() },
        RegistrationConfig {
            entries_max: 0,
            keep_unpinned: true,
            evict_count: 0,
            ..RegistrationConfig::default()
        },
        RegistrationConfig { size_max: 0, ..RegistrationConfig::default() },
        RegistrationConfig { size_max: 0, entries_max: usize::MAX, ..RegistrationConfig::default() },
    ] {
        let registrar = registrar(config);
        let pin = registrar.pin(part(&area, 0, PAGE));
        assert!(!registrar.preregister(part(&area, 0, PAGE)), "{config:?}");
        assert!(!registrar.preregister(part(&area, 0, 0)));
        assert!(!registrar.preregister(part(&area, PAGE, PAGE)), "nobody pinned it");
        let counters = registrar.counters();
        assert_eq!((counters.entries, counters.registrations, counters.misses), (0, 0, 0), "{config:?}");
        registrar.unpin(pin);
    }
}

// [CLI-79]
#[test]
fn bounds_hold_at_their_edges() {
    const PINS: usize = 40;
    let area = Area::new(PINS * PAGE);
    let page = PAGE as u64;
    for (entries_max, size_max, kept_max) in
        [(1, u64::MAX, 1), (usize::MAX, 3 * page, 3), (usize::MAX, u64::MAX, PINS as u64), (3, page, 1)]
    {
        for evict_count in [0, 1, 2, usize::MAX] {
            let config =
                RegistrationConfig { entries_max, size_max, evict_count, ..RegistrationConfig::default() };
            let registrar = registrar(config);
            for number in 0..PINS {
                registrar.pin(part(&area, number * PAGE, PAGE));
                assert!(registrar.preregister(part(&area, number * PAGE, PAGE)), "{config:?}");
                let counters = registrar.counters();
                assert!(counters.entries <= kept_max && counters.kept_size <= size_max, "{config:?}");
            }
            let counters = registrar.counters();
            assert_eq!(counters.entries + counters.evictions, PINS as u64, "{config:?}");
        }
    }
}

// [CLI-81]
#[test]
fn entry_in_use_does_not_give_way_and_preregister_says_so() {
    let area = Area::new(2 * PAGE);
    let registrar = registrar(RegistrationConfig {
        entries_max: 1,
        evict_count: usize::MAX,
        ..RegistrationConfig::default()
    });
    registrar.pin(part(&area, 0, 2 * PAGE));
    let memory = raw(&area, 0, PAGE);
    let loan = registrar.lend(&memory, Access::REMOTE_READ, RegistrationPolicy::Library).unwrap();
    assert!(!registrar.preregister(part(&area, PAGE, PAGE)));
    drop(loan);
    assert!(registrar.preregister(part(&area, PAGE, PAGE)));
    assert_eq!(registrar.counters().evictions, 1);
}

// [CLI-53]
#[test]
fn cache_that_shrinks_lets_operations_end() {
    let area = Area::new(3 * PAGE);
    let registrar = registrar(RegistrationConfig::default());
    registrar.pin(part(&area, 0, 3 * PAGE));
    let loan = |page: usize| {
        registrar.lend(&raw(&area, page * PAGE, PAGE), Access::REMOTE_READ, RegistrationPolicy::Operation)
    };
    let used = loan(0).unwrap();
    drop((loan(1), loan(2)));
    registrar.set_entries_max(2);
    assert_eq!((registrar.counters().entries, registrar.counters().evictions), (2, 1));
    let range = used.range_of(&raw(&area, 0, PAGE));
    assert!(range.is_some() && !used.is_shared(), "it is the operation's alone now");
    registrar.set_entries_max(0);
    assert_eq!((registrar.counters().entries, registrar.counters().evictions), (0, 3));
    assert!(loan(1).is_none());
    registrar.set_entries_max(usize::MAX);
    assert!(loan(1).is_some());
    assert_eq!(registrar.counters().entries, 1);
}

fn raw(area: &Area, start: usize, len: usize) -> RawMemory {
    // SAFETY: the area outlives the registrar's use of it, and nothing touches the bytes.
    unsafe { RawMemory::new(area.pointer().wrapping_add(start), len) }
}

// [CLI-82] [CLI-86]
#[test]
#[ignore = "needs userfaultfd"]
fn end_of_a_pin_does_not_blind_one_around_it() {
    let area = Area::new(8 * PAGE);
    let registrar = registrar(RegistrationConfig::default());
    let outer = part(&area, 0, 8 * PAGE);
    registrar.pin(outer);
    assert!(registrar.preregister(outer));
    // Within it; and within pages of it only.
    for inner in [part(&area, 2 * PAGE, PAGE), part(&area, 5 * PAGE + 100, 200)] {
        let pin = registrar.pin(inner);
        assert!(registrar.preregister(inner));
        registrar.unpin(pin);
        registrar.preregister(outer);
        assert!(!is_registered_anew(&registrar, outer));
        area.empty((inner.start - outer.start) & !(PAGE - 1), PAGE);
        assert!(is_registered_anew(&registrar, outer), "its pages are others");
    }
}

// [CLI-82] [CLI-86]
#[test]
#[ignore = "needs userfaultfd"]
fn end_of_a_pin_does_not_blind_its_neighbours_in_a_page() {
    let area = Area::new(PAGE);
    let config = RegistrationConfig { keep_unpinned: true, ..RegistrationConfig::default() };
    let registrar = registrar(config);
    let [unpinned, pinned, ended] = [100, 300, 500].map(|start| part(&area, start, 100));
    registrar.pin(pinned);
    let pin = registrar.pin(ended);
    for extent in [unpinned, pinned, ended] {
        assert!(registrar.preregister(extent));
    }
    registrar.unpin(pin);
    for extent in [unpinned, pinned] {
        registrar.preregister(extent);
        assert!(!is_registered_anew(&registrar, extent));
    }
    area.empty(0, PAGE);
    for extent in [unpinned, pinned] {
        assert!(is_registered_anew(&registrar, extent));
    }
}

// [CLI-82]
#[test]
#[ignore = "needs userfaultfd"]
fn moved_memory_is_registered_anew_where_it_is_and_where_it_was() {
    let config = RegistrationConfig { keep_unpinned: true, ..RegistrationConfig::default() };
    let registrar = registrar(config);
    let (area, place) = (Area::new(4 * PAGE), Area::new(8 * PAGE));
    let (from, to) = (part(&area, 0, 4 * PAGE), part(&place, 0, 8 * PAGE));
    for extent in [from, to] {
        assert!(is_registered_anew(&registrar, extent));
        assert!(!is_registered_anew(&registrar, extent));
    }
    area.move_to(&place, 8 * PAGE);
    assert!(is_registered_anew(&registrar, to));
    assert_eq!(registrar.counters().stale, 2, "the one that moved, and the one whose place it took");
    // It is watched where it is now, too.
    assert!(!is_registered_anew(&registrar, to));
    place.empty(5 * PAGE, PAGE);
    assert!(is_registered_anew(&registrar, to));
}

// [CLI-92]
#[test]
fn gaps_that_nobody_lent_are_not_kept() {
    let area = Area::new(8 * PAGE);
    let config = RegistrationConfig {
        keep_unpinned: true,
        cost: Some(RegistrationCost { page_ns: 1.0, call_ns: 1000.0 }),
        group: true,
        ..RegistrationConfig::default()
    };
    let registrar = registrar(config);
    let rows: Vec<RawMemory> = [0, 2, 5, 7].iter().map(|page| raw(&area, page * PAGE, 100)).collect();
    let registered = registrar.register(&rows, Access::REMOTE_READ, RegistrationPolicy::Library).unwrap();
    assert_eq!((registered.holds.len(), registrar.counters().entries), (1, 0));
    area.protect(4 * PAGE, PAGE, libc::PROT_NONE);
    let registered = registrar.register(&rows, Access::REMOTE_READ, RegistrationPolicy::Library).unwrap();
    assert_eq!((registered.holds.len(), registrar.counters().entries), (2, 0), "with and without a hole");
}

// [CLI-85] A registration takes time, and no lock.
#[test]
fn memory_that_changes_while_it_is_registered_is_not_kept() {
    let area = Area::new(4 * PAGE);
    let all = part(&area, 0, 4 * PAGE);
    let domain = Arc::new(Interrupted::default());
    let registrar = Registrar::new(Arc::clone(&domain) as Arc<dyn Domain>, RegistrationConfig::default());
    let pin = registrar.pin(all);
    domain.registrar.set(Arc::downgrade(&registrar)).ok().unwrap();
    domain.meanwhile(move |registrar| registrar.invalidate(part_of(all, 3)));
    assert!(!registrar.preregister(all));
    assert_eq!(registrar.counters().entries, 0);
    domain.meanwhile(move |registrar| registrar.invalidate(Extent::new(all.end, PAGE)));
    assert!(registrar.preregister(all), "it was other memory");
    registrar.invalidate(all);
    domain.meanwhile(move |registrar| registrar.unpin(pin));
    assert!(!registrar.preregister(all));
    registrar.pin(all);
    // Another was faster.
    domain.meanwhile(move |registrar| assert!(is_registered_anew(registrar, all)));
    assert!(is_registered_anew(&registrar, all));
    assert_eq!((registrar.counters().entries, registrar.counters().kept_size), (1, 4 * PAGE as u64));
}

// [CLI-85] The kernel tells of the change.
#[test]
#[ignore = "needs userfaultfd"]
fn memory_that_is_emptied_while_it_is_registered_is_not_kept() {
    let area = Area::new(4 * PAGE);
    let all = part(&area, 0, 4 * PAGE);
    let domain = Arc::new(Interrupted::default());
    let registrar = Registrar::new(Arc::clone(&domain) as Arc<dyn Domain>, RegistrationConfig::default());
    domain.registrar.set(Arc::downgrade(&registrar)).ok().unwrap();
    registrar.pin(all);
    domain.meanwhile(move |_| area.empty(PAGE, PAGE));
    assert!(!registrar.preregister(all));
    assert_eq!(registrar.counters().entries, 0);
}

// [CLI-90]
#[test]
fn group_of_which_the_gap_is_refused_is_registered_one_by_one() {
    let area = Area::new(8 * PAGE);
    let domain = Arc::new(Interrupted::default());
    let config = RegistrationConfig {
        cost: Some(RegistrationCost { page_ns: 1.0, call_ns: 1000.0 }),
        group: true,
        ..RegistrationConfig::default()
    };
    let registrar = Registrar::new(Arc::clone(&domain) as Arc<dyn Domain>, config);
    // Mapped, as the system says, and not to be registered.
    *domain.refused.lock().unwrap() = Some(part(&area, 3 * PAGE, PAGE));
    let rows: Vec<RawMemory> = [0, 2, 5, 7].iter().map(|page| raw(&area, page * PAGE, 100)).collect();
    let registered = registrar.register(&rows, Access::REMOTE_READ, RegistrationPolicy::Library).unwrap();
    assert_eq!((registered.holds.len(), registrar.counters().groups), (4, 0));
    for (row, range) in rows.iter().zip(&registered.ranges) {
        assert_eq!(range.len, row.len() as u64);
    }
    *domain.refused.lock().unwrap() = Some(part(&area, 5 * PAGE, PAGE));
    assert!(
        registrar.register(&rows, Access::REMOTE_READ, RegistrationPolicy::Library).is_err(),
        "one of them is refused itself"
    );
}

fn part_of(extent: Extent, page: usize) -> Extent {
    Extent::new(extent.start + page * PAGE, PAGE)
}

// [CLI-87]
#[test]
fn registrar_may_end_while_memory_goes() {
    let config = RegistrationConfig { keep_unpinned: true, ..RegistrationConfig::default() };
    for _ in 0..100 {
        let registrar = registrar(config);
        let area = Area::new(8 * PAGE);
        for page in 0..8 {
            registrar.preregister(part(&area, page * PAGE, PAGE));
        }
        let goes = std::thread::spawn(move || {
            (0..7).for_each(|page| area.empty(page * PAGE, PAGE));
            drop(area);
        });
        drop(registrar);
        goes.join().unwrap();
    }
}

/// As tcp; something else happens while memory is registered.
#[derive(Default)]
struct Interrupted {
    domain: TcpDomain,
    registrar: OnceLock<Weak<Registrar>>,
    meanwhile: Mutex<Option<Meanwhile>>,
    /// Nothing that touches this can be registered.
    refused: Mutex<Option<Extent>>,
}

type Meanwhile = Box<dyn FnOnce(&Registrar) + Send>;

impl Interrupted {
    fn meanwhile(&self, what: impl FnOnce(&Registrar) + Send + 'static) {
        *self.meanwhile.lock().unwrap() = Some(Box::new(what));
    }
}

impl Domain for Interrupted {
    fn provider(&self) -> Provider {
        self.domain.provider()
    }

    fn pins_pages(&self) -> bool {
        self.domain.pins_pages()
    }

    fn allocate(&self, len: usize) -> Result<Arc<dyn Memory>, RegionError> {
        self.domain.allocate(len)
    }

    fn register(&self, memory: MemoryRef, access: Access) -> Result<Region, RegionError> {
        let extent = Extent::new(memory.span().as_ptr() as usize, memory.len());
        if self.refused.lock().unwrap().is_some_and(|refused| refused.overlaps(&extent)) {
            return Err(RegionError::TooMany { limit: 0 });
        }
        let region = self.domain.register(memory, access);
        let meanwhile = self.meanwhile.lock().unwrap().take();
        if let (Some(meanwhile), Some(registrar)) = (meanwhile, self.registrar.get().and_then(Weak::upgrade))
        {
            meanwhile(&registrar);
        }
        region
    }

    fn connect(
        &self,
        address: &Address,
        params: &ConnectParams,
        timeout: Duration,
    ) -> Result<Box<dyn Endpoint>, ConnectError> {
        self.domain.connect(address, params, timeout)
    }

    fn listen(&self, address: &Address, params: &ConnectParams) -> Result<Box<dyn Listener>, ConnectError> {
        self.domain.listen(address, params)
    }
}
