//! Sleeping, waking and spinning.

use std::os::fd::{AsRawFd, RawFd};
use std::time::{Duration, Instant};

use super::super::{Interrupt, TransportError, WaitPolicy};
use super::cm::poll_readable;
use super::core::Core;
use super::events;

/// How long an adaptive wait spins before it sleeps: at least, and at most where waits have been that long.
pub(super) const SPIN_MIN: Duration = Duration::from_micros(10);
const SPIN_MAX: Duration = Duration::from_micros(100);

/// Of the connection manager among [`Core::event_fds`].
pub(super) const PLACE_OF_MANAGER: usize = 1;

/// Looks at the completion queue in a row.
const LOOKS_AT_ONCE: u32 = 16;

/// Looks at the completion queue between two at the clock, for who never sleeps.
const LOOKS_BETWEEN_CLOCKS: u32 = 256;

impl Core {
    /// Something may be here to receive, or room to send.
    fn is_ready(&self) -> bool {
        self.has_arrivals()
            || !self.completions.is_empty()
            || self.failure.is_some()
            || !self.is_open()
            || self.has_room_again()
    }

    /// A post was refused, and may not be now.
    fn has_room_again(&self) -> bool {
        self.starved && self.slots.has_free() && self.has_room(self.room_wanted)
    }

    /// As `Looks::look`. There is no pause between looks: each takes the lock of the device's library, which is pause enough, and what
    /// is an instruction to a processor is a way out of an emulated one, and some microseconds.
    #[inline]
    pub(super) fn look(&mut self, times: u32) -> bool {
        for _ in 0..times {
            self.progress();
            if self.is_ready() {
                return true;
            }
        }
        false
    }

    /// As `Endpoint::arm`.
    pub(super) fn arm(&mut self) -> bool {
        if self.is_ready() {
            self.tell_of_room();
            return false;
        }
        self.post_receives();
        self.post_list();
        self.slots.trim();
        self.tell_counters();
        // A message carries a mark; what this side posted completes without one. Large messages count as untaken until then.
        let marked_only = self.operations.is_empty() && !self.starved && self.slots.large_bytes() == 0;
        if self.events_due {
            self.take_events();
        }
        self.counters.arms += 1;
        if let Err(error) = self.cq.arm(marked_only) {
            self.fail(TransportError::system("arm the RDMA completion queue", error));
            return false;
        }
        // What came between the last look and the arming gives no event.
        self.progress();
        self.armed = true;
        self.events_due = true;
        let is_ready = self.is_ready();
        self.tell_of_room();
        !is_ready
    }

    /// Who was refused tries again when it is told that something is here. It is told once: otherwise this side would never sleep again.
    fn tell_of_room(&mut self) {
        self.starved &= !self.has_room_again();
    }

    /// As `Endpoint::wait_or`.
    pub(super) fn wait(
        &mut self,
        timeout: Option<Duration>,
        interrupt: Option<&Interrupt>,
    ) -> Result<(), TransportError> {
        self.flush()?;
        // Who finds something soon need not know the time.
        if self.policy == WaitPolicy::Busy && self.look(LOOKS_BETWEEN_CLOCKS) {
            self.starved = false;
            return Ok(());
        }
        let began = Instant::now();
        let deadline = timeout.and_then(|timeout| began.checked_add(timeout));
        let spun = match self.policy {
            WaitPolicy::Event => false,
            WaitPolicy::Adaptive => self.spin(Some(began + self.spin_time), deadline, interrupt),
            WaitPolicy::Busy => self.spin(None, deadline, interrupt),
        };
        if spun || !self.arm() || interrupt.is_some_and(|interrupt| !interrupt.may_sleep()) {
            self.starved = false;
            return Ok(());
        }
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        self.counters.sleeps += 1;
        let [queue, manager] = self.event_fds();
        let device = events::descriptor(&self.device);
        let slept = match interrupt {
            Some(interrupt) => {
                let slept = poll_readable([queue, manager, device, interrupt.fd().as_raw_fd()], left);
                interrupt.woke(slept.as_ref().is_ok_and(|[.., rung]| *rung));
                slept.map(|[queue, manager, device, _]| [queue, manager, device])
            }
            None => poll_readable([queue, manager, device], left),
        };
        let [queue, manager, device] =
            slept.map_err(|error| TransportError::system("wait for the peer", error))?;
        if manager || device {
            self.take_manager_events();
        }
        // The event is taken when there is nothing else to do, at the latest before the next sleep.
        self.events_due = queue;
        self.learn_wait(began.elapsed());
        self.progress();
        self.starved = false;
        Ok(())
    }

    /// Polls until something came, until one of two moments, or, who never sleeps, until another thread wants this one; `true` when it
    /// need not sleep.
    fn spin(
        &mut self,
        give_up: Option<Instant>,
        deadline: Option<Instant>,
        interrupt: Option<&Interrupt>,
    ) -> bool {
        let mut looks = 0u32;
        loop {
            if self.look(LOOKS_AT_ONCE) {
                return true;
            }
            looks += LOOKS_AT_ONCE;
            // Who spins all the time is in no hurry to know the time, and the connection manager is a system call away.
            if give_up.is_none() && !looks.is_multiple_of(LOOKS_BETWEEN_CLOCKS) {
                continue;
            }
            let now = Instant::now();
            if deadline.is_some_and(|deadline| now >= deadline) {
                return true;
            }
            match give_up {
                Some(give_up) if now >= give_up => return false,
                Some(_) => {}
                // Nobody else asks the connection manager.
                None if interrupt.is_some_and(Interrupt::take) => return true,
                None => self.take_manager_events(),
            }
        }
    }

    /// After a wait that ended in sleep: waits of this length are worth spinning for, or not.
    fn learn_wait(&mut self, waited: Duration) {
        self.spin_time = if waited <= SPIN_MAX {
            (waited * 2).clamp(SPIN_MIN, SPIN_MAX)
        } else {
            (self.spin_time / 2).max(SPIN_MIN)
        };
    }

    /// As `Endpoint::flush`.
    pub(super) fn flush(&mut self) -> Result<(), TransportError> {
        if !self.is_open() {
            return Err(TransportError::Closed);
        }
        if self.failure.is_some() {
            // What arrived before is told first.
            return if self.has_arrivals() { Ok(()) } else { Err(self.end()) };
        }
        self.post_list();
        self.post_receives();
        Ok(())
    }

    /// Of the completion queue, and of the connection manager.
    pub(super) fn event_fds(&self) -> [RawFd; 2] {
        [self.cq.fd(), self.id.channel().fd()]
    }
}
