//! The regions of a domain: announced to every connection, and taken back from all of them before the memory is the owner's again.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::super::util::{RandomNumbers, lock};
use super::super::{Access, MemoryRef, Provider, Region, RegionError, RegionKey, RegionOwner, RemoteRange};
use super::connection::{Announcement, Connection};
use super::handshake::Message;
use super::layout::{OWN_REGIONS_MAX, REGIONS_MAX};
use super::map::shared_offset;
use super::remote::{
    KEY_ORDINARY, RECORD_ACCESS, RECORD_ADDRESS, RECORD_KEY, RECORD_LEN, ShmLimits, key_slot,
};

/// Waits of this length stay out of the kernel.
const REVOKE_SPIN: Duration = Duration::from_micros(20);

/// Registered memory and live connections of one domain.
pub(super) struct Registry {
    state: Mutex<Records>,
    /// As [`super::ShmConfig::revoke_wait_max`].
    revoke_wait_max: Duration,
    limits: ShmLimits,
}

#[derive(Default)]
struct Records {
    /// By record; the same record on every connection.
    regions: Vec<Option<Registered>>,
    /// Records that were used and are free; the last is taken first, so that few pages are touched.
    free: Vec<u16>,
    /// Live connections.
    connections: Vec<Arc<Connection>>,
    /// Closed ones whose peers have accesses in progress.
    draining: Vec<Arc<Connection>>,
    /// By key: regions that the peer of one connection alone reaches.
    own: HashMap<u64, OwnRegion>,
    /// Those of them that ended while their peer had accesses in progress, as it says. Bounded by its records.
    lingering: Vec<OwnRegion>,
    random: RandomNumbers,
}

struct OwnRegion {
    region: Registered,
    connection: Arc<Connection>,
}

#[derive(Clone)]
struct Registered {
    key: u64,
    memory: MemoryRef,
    access: Access,
}

impl Registry {
    pub(super) fn new(revoke_wait_max: Duration, limits: ShmLimits) -> Arc<Self> {
        Arc::new(Self { state: Mutex::new(Records::default()), revoke_wait_max, limits })
    }

    /// What memory of peers may take.
    pub(super) fn limits(&self) -> &ShmLimits {
        &self.limits
    }

    /// As `Domain::register`.
    pub(super) fn register(
        self: &Arc<Self>,
        memory: MemoryRef,
        access: Access,
    ) -> Result<Region, RegionError> {
        let len = memory.len() as u64;
        let mut state = lock(&self.state);
        let key = if access == Access::LOCAL {
            // No peer may reach it: no record. Never found by a peer, as records are compared with the whole key.
            state.draw()? | KEY_ORDINARY
        } else {
            let offset = shared_offset(&memory).map_err(|_| unsealed())?;
            let shared = offset.is_some();
            let connections = &state.connections;
            let reachable = |connection: &Arc<Connection>| connection.peer_reaches_us.load(Ordering::Relaxed);
            if !shared && !connections.is_empty() && !connections.iter().any(reachable) {
                return Err(unreachable());
            }
            state.insert(memory.clone(), access, shared)?
        };
        drop(state);
        let range = RemoteRange { key: RegionKey(key), offset: 0, len };
        Ok(Region::new(range, memory, Arc::clone(self) as Arc<dyn RegionOwner>))
    }

    /// As [`Registry::register`], for the peer of one connection.
    pub(super) fn register_own(
        self: &Arc<Self>,
        connection: &Arc<Connection>,
        memory: MemoryRef,
        access: Access,
    ) -> Result<Region, RegionError> {
        let len = memory.len() as u64;
        let offset = shared_offset(&memory).map_err(|_| unsealed())?;
        if offset.is_none() && !connection.peer_reaches_us.load(Ordering::Relaxed) {
            return Err(unreachable());
        }
        let mut state = lock(&self.state);
        state.sweep();
        let random = state.draw()?;
        let slot = connection.take_own_record();
        let slot = slot.ok_or(RegionError::TooMany { limit: OWN_REGIONS_MAX.into() })?;
        let region =
            Registered { key: key_of(random, slot, offset.is_some()), memory: memory.clone(), access };
        publish(connection, &region);
        let key = region.key;
        state.own.insert(key, OwnRegion { region, connection: Arc::clone(connection) });
        drop(state);
        let range = RemoteRange { key: RegionKey(key), offset: 0, len };
        Ok(Region::new(range, memory, Arc::clone(self) as Arc<dyn RegionOwner>))
    }

    /// Announces all regions on a new connection, and later ones as they come.
    pub(super) fn attach(&self, connection: Arc<Connection>) {
        let mut state = lock(&self.state);
        for region in state.regions.iter().flatten() {
            publish(&connection, region);
        }
        state.connections.push(connection);
        state.sweep();
    }

    /// The connection was closed: takes all regions away from it. It is remembered as long as accesses of its peer are in progress.
    pub(super) fn detach(&self, connection: &Arc<Connection>) {
        let mut state = lock(&self.state);
        state.records_in_use().for_each(|slot| connection.revoke(slot));
        state.connections.retain(|other| !Arc::ptr_eq(other, connection));
        state.draining.push(Arc::clone(connection));
        state.sweep();
    }

    /// Live connections, and closed ones with accesses in progress.
    #[cfg(test)]
    pub(super) fn connection_counts(&self) -> (usize, usize) {
        let state = lock(&self.state);
        (state.connections.len(), state.draining.len())
    }
}

impl RegionOwner for Registry {
    fn deregister(&self, key: RegionKey) {
        let slot = key_slot(key.0);
        let mut state = lock(&self.state);
        if let Some(own) = state.own.remove(&key.0) {
            return state.end_own(own);
        }
        let Some(entry) = state.regions.get_mut(usize::from(slot)) else { return };
        // Local regions have no record.
        if entry.as_ref().is_none_or(|region| region.key != key.0) {
            return;
        }
        let Some(region) = entry.take() else { return };
        for connection in &state.connections {
            connection.revoke(slot);
        }
        let ordinary = key.0 & KEY_ORDINARY != 0;
        // Who cannot reach ordinary memory only says that it uses it, and this side would wait for as long as it likes.
        let uses = |connection: &&Arc<Connection>| {
            connection.in_use(slot) != 0 && (!ordinary || connection.peer_reaches_us.load(Ordering::Relaxed))
        };
        let users: Vec<_> =
            state.connections.iter().chain(&state.draining).filter(uses).map(Arc::clone).collect();
        if !ordinary {
            for connection in &state.connections {
                connection
                    .announce(Announcement { message: Message::Unregister { key: key.0 }, memory: None });
            }
        }
        if users.is_empty() {
            state.free.push(slot);
            return;
        }
        drop(state);
        let ended = users.iter().all(|connection| wait_for_end(connection, slot, key, self.revoke_wait_max));
        if ended {
            lock(&self.state).free.push(slot);
        } else {
            tracing::error!(%key, "shm: the peer still uses a region that ended; its memory is never used again");
            std::mem::forget(region);
        }
        drop(users);
        lock(&self.state).sweep();
    }
}

/// Waits until the peer's accesses have ended. They are short: a copy, or one file operation whose client gave up on it.
fn wait_for_end(connection: &Connection, slot: u16, key: RegionKey, wait_max: Duration) -> bool {
    let started = Instant::now();
    let ordinary = key.0 & KEY_ORDINARY != 0;
    loop {
        if connection.in_use(slot) == 0 || connection.peer_is_gone() {
            return true;
        }
        let waited = started.elapsed();
        // Ordinary memory may be the lender's again at once, so there is nothing to do but wait: the peer is inside one system call.
        if waited >= wait_max && !ordinary {
            return false;
        }
        if waited < REVOKE_SPIN {
            std::hint::spin_loop();
        } else if waited < REVOKE_SPIN * 50 {
            std::thread::yield_now();
        } else {
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

/// Writes a region's record, and sends its memory file.
fn publish(connection: &Connection, region: &Registered) {
    let record = connection.layout.record(connection.side, key_slot(region.key));
    let (segment, memory) = (&connection.segment, &region.memory);
    let len = memory.len() as u64;
    segment.long(record + RECORD_ADDRESS).store(memory.span().as_ptr() as u64, Ordering::Relaxed);
    segment.long(record + RECORD_LEN).store(len, Ordering::Relaxed);
    segment.word(record + RECORD_ACCESS).store(region.access.bits().into(), Ordering::Relaxed);
    segment.long(record + RECORD_KEY).store(region.key, Ordering::SeqCst);
    if region.key & KEY_ORDINARY != 0 {
        return;
    }
    let base = memory.memory().shared_fd().map_or(0, |shared| shared.offset);
    let offset = base + memory.offset() as u64;
    let message = Message::Register { key: region.key, offset, len, access: region.access };
    connection.announce(Announcement { message, memory: Some(memory.clone()) });
}

impl Records {
    /// Forgets closed connections whose peers are done with our memory.
    fn sweep(&mut self) {
        let slots = self.records_in_use();
        let in_use = |connection: &Connection| slots.clone().any(|slot| connection.in_use(slot) != 0);
        self.draining.retain(|connection| in_use(connection) && !connection.peer_is_gone());
        self.lingering.retain(|own| {
            let stays = own.is_in_use() && !own.connection.peer_is_gone();
            if !stays {
                own.connection.free_own_record(key_slot(own.region.key));
            }
            stays
        });
    }

    /// Records that domain-wide regions had.
    fn records_in_use(&self) -> std::ops::Range<u16> {
        0..u16::try_from(self.regions.len()).unwrap_or(REGIONS_MAX)
    }

    /// A region of one connection ends. Nobody waits for its peer: the memory lives on for as long as that says it uses it, or lives.
    fn end_own(&mut self, own: OwnRegion) {
        own.connection.revoke(key_slot(own.region.key));
        if own.region.key & KEY_ORDINARY == 0 {
            let message = Message::Unregister { key: own.region.key };
            own.connection.announce(Announcement { message, memory: None });
        }
        self.lingering.push(own);
        self.sweep();
    }

    fn insert(&mut self, memory: MemoryRef, access: Access, shared: bool) -> Result<u64, RegionError> {
        let random = self.draw()?;
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => {
                let slot = u16::try_from(self.regions.len())
                    .ok()
                    .filter(|slot| *slot < REGIONS_MAX - OWN_REGIONS_MAX);
                let slot =
                    slot.ok_or(RegionError::TooMany { limit: (REGIONS_MAX - OWN_REGIONS_MAX).into() })?;
                self.regions.push(None);
                slot
            }
        };
        let key = key_of(random, slot, shared);
        let region = Registered { key, memory, access };
        for connection in &self.connections {
            publish(connection, &region);
        }
        self.regions[usize::from(slot)] = Some(region);
        Ok(key)
    }

    /// A random number whose bits above the record are not all zero, so that a key is never 0.
    fn draw(&mut self) -> Result<u64, RegionError> {
        loop {
            let random = self.random.draw()?;
            if random & !KEY_ORDINARY & !u64::from(REGIONS_MAX - 1) != 0 {
                return Ok(random);
            }
        }
    }
}

impl OwnRegion {
    fn is_in_use(&self) -> bool {
        self.connection.in_use(key_slot(self.region.key)) != 0
    }
}

fn key_of(random: u64, slot: u16, shared: bool) -> u64 {
    let kind = if shared { 0 } else { KEY_ORDINARY };
    (random & !KEY_ORDINARY & !u64::from(REGIONS_MAX - 1)) | u64::from(slot) | kind
}

fn unsealed() -> RegionError {
    let what = "memory in a file that is no memory file sealed against shrinking";
    RegionError::Unsupported { provider: Provider::Shm, what }
}

fn unreachable() -> RegionError {
    let what = "ordinary memory: this system does not permit cross-memory attach between the two processes";
    RegionError::Unsupported { provider: Provider::Shm, what }
}
