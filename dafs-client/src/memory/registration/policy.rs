//! Who registers the memory of a file's transfers.

use std::sync::atomic::{AtomicU8, Ordering};

/// Who registers ordinary memory for a file's transfers, and for how long ([`crate::File::set_registration_policy`]).
///
/// Pinned memory ([`crate::Session::pin`]) is found registered under every policy, and a [`crate::RegisteredBuf`] is registered anyway. A
/// demand of the configuration ([`crate::MethodOverride`], [`crate::Noncontiguous::Pack`]) goes before a policy. Data that is small
/// enough, by the thresholds of the server, travels in messages and needs no registration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum RegistrationPolicy {
    /// The library does as the session is configured ([`crate::RegistrationConfig`]), or copies where that is faster.
    #[default]
    Library,
    /// Each operation registers its memory, and no registration is kept. Data is not copied through bounce buffers, unless registering
    /// fails.
    Operation,
    /// Registrations are kept from one operation to the next, as with [`crate::RegistrationConfig::keep_unpinned`]. The memory stays within
    /// the server's reach. Where the kernel does not tell of its changes (userfaultfd), as [`RegistrationPolicy::Operation`]. The kernel
    /// tells one session of a process: where two sessions use the same memory, the first keeps registrations of it.
    Kept,
}

/// A policy that may change at any time.
#[derive(Debug, Default)]
pub(crate) struct PolicyCell(AtomicU8);

impl RegistrationPolicy {
    /// All of them, each at its number.
    const ALL: [Self; 3] = [Self::Library, Self::Operation, Self::Kept];
}

impl PolicyCell {
    #[inline]
    pub(crate) fn get(&self) -> RegistrationPolicy {
        RegistrationPolicy::ALL.get(usize::from(self.0.load(Ordering::Relaxed))).copied().unwrap_or_default()
    }

    pub(crate) fn set(&self, policy: RegistrationPolicy) {
        self.0.store(policy as u8, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use dafs_proto::wire::Crossovers;
    use dafs_tests::suite::bytes;

    use super::*;
    use crate::memory::registration::area::Area;
    use crate::memory::registration::watch::Watch;
    use crate::testing::{INLINE_MAX, World};

    // [CLI-83] [CLI-95] Each by its own threshold: one less is inline.
    #[test]
    fn threshold_is_that_of_the_memory_as_the_policy_makes_it() {
        let world = World::new(1);
        let data = bytes(1, INLINE_MAX as usize);
        world.put("f", &data);
        let session = world.session();
        let file = session.mount("data").unwrap().open("f").unwrap();
        let shared = &session.owner.shared;
        let mut core = shared.lock();
        core.terms.welcome.thresholds.crossovers = Crossovers {
            read_registered: 1001,
            read_unregistered: 3000,
            write_registered: 2003,
            write_unregistered: 5000,
        };
        // No pages are held here: ordinary memory is ordinary memory still when its registration is kept.
        assert_eq!(core.useful_sizes_min(&shared.config), [[1001, 2003], [3000, 5000]]);
        drop(core);
        let can_keep = shared.registrar.can_keep();
        assert_eq!(can_keep, Watch::start(|_| {}).is_ok());
        // As where pages are held.
        shared.registrar.set_useful_min([[1001, 2003]; 2]);
        let kept_min = if can_keep { 1001 } else { 3000 };
        for (policy, size_min) in
            [(RegistrationPolicy::Operation, 3000), (RegistrationPolicy::Kept, kept_min)]
        {
            file.set_registration_policy(policy);
            for (size, expected) in [(1, 0), (size_min - 1, 0), (size_min, 1)] {
                let before = session.registration_counters().registrations;
                // Of the allocator's memory another session could be told.
                let area = Area::new(size);
                file.read_exact_at(area.bytes(0, size), 0).unwrap();
                assert_eq!(area.bytes(0, size), &data[..size]);
                assert_eq!(
                    session.registration_counters().registrations - before,
                    expected,
                    "{policy:?} {size}"
                );
            }
        }
    }

    #[test]
    fn cell_holds_each_policy() {
        let cell = PolicyCell::default();
        assert_eq!(cell.get(), RegistrationPolicy::Library);
        for policy in RegistrationPolicy::ALL {
            cell.set(policy);
            assert_eq!(cell.get(), policy);
        }
    }
}
