//! What connections cost: counted by each for itself, and added up for the process.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[doc = $help:literal])+ $name:ident,)*) => {
        /// What a connection has cost so far.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counters {
            $($(#[doc = $help])+ pub $name: u64,)*
        }

        impl Counters {
            /// Every counter with its name and what it counts.
            pub fn named(&self) -> Vec<(&'static str, &'static str, u64)> {
                vec![$((stringify!($name), concat!($($help),+).trim(), self.$name)),*]
            }
        }

        static TOTALS: Totals = Totals { $($name: AtomicU64::new(0)),* };

        struct Totals {
            $($name: AtomicU64,)*
        }

        /// What all connections of this process have cost. A connection adds its part when it begins to wait and when it ends.
        pub fn totals() -> Counters {
            Counters { $($name: TOTALS.$name.load(Ordering::Relaxed)),* }
        }

        /// Adds what a connection did since `told`.
        pub(super) fn add_to_totals(now: &Counters, told: &mut Counters) {
            $(
                if now.$name != told.$name {
                    TOTALS.$name.fetch_add(now.$name.wrapping_sub(told.$name), Ordering::Relaxed);
                }
            )*
            *told = *now;
        }

        impl Totals {
            fn registered(&self) -> (&AtomicU64, &AtomicU64) {
                (&self.registrations, &self.deregistrations)
            }
        }
    };
}

counters! {
    /// Work requests of the send queue: messages, notes and RDMA.
    work_requests,
    /// Those of them that are RDMA.
    rdma_requests,
    /// Those of them whose data left with the request.
    inline_requests,
    /// Calls that hand work requests to the device.
    doorbells,
    /// Calls that post receives.
    receive_posts,
    /// Completions taken, of both queues.
    completions,
    /// Looks at the completion queue.
    polls,
    /// Times an event was asked for.
    arms,
    /// Times this side slept in a blocking wait.
    sleeps,
    /// Messages sent.
    sent,
    /// Messages and immediates received.
    received,
    /// RDMA data copied because its memory is not registered, bytes.
    bytes_copied,
    /// Registrations of memory with the device.
    registrations,
    /// Registrations ended.
    deregistrations,
}

/// Registrations made and ended with a device, which belong to no connection.
#[derive(Debug, Default)]
pub(super) struct RegistrationCounters {
    registrations: AtomicU64,
    deregistrations: AtomicU64,
}

impl RegistrationCounters {
    pub(super) fn registered(&self) {
        self.registrations.fetch_add(1, Ordering::Relaxed);
        TOTALS.registered().0.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn deregistered(&self) {
        self.deregistrations.fetch_add(1, Ordering::Relaxed);
        TOTALS.registered().1.fetch_add(1, Ordering::Relaxed);
    }

    /// Registrations made, and ended.
    pub(super) fn read(&self) -> (u64, u64) {
        (self.registrations.load(Ordering::Relaxed), self.deregistrations.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_grow_by_what_was_not_told_yet() {
        let mut told = Counters::default();
        let before = totals();
        let mut now = Counters { sleeps: 3, ..Counters::default() };
        add_to_totals(&now, &mut told);
        now.sleeps = 5;
        add_to_totals(&now, &mut told);
        add_to_totals(&now, &mut told);
        // Other tests may count beside this one.
        assert!(totals().sleeps - before.sleeps >= 5);
        assert_eq!(told, now);
        assert!(now.named().contains(&("sleeps", "Times this side slept in a blocking wait.", 5)));
    }
}
