//! Sleeping, waking and spinning. What the sides tell each other of it is in `sleeping`.

use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::super::util::current_cpu;
use super::super::{Endpoint, Interrupt, Looks, TransportError, WaitPolicy};
use super::endpoint::{CONTROL_PER_TURN, POLLS_BETWEEN_SOCKET_LOOKS, ShmEndpoint};
use super::layout::{SLEEPS_FOR_MESSAGE, SLEEPS_FOR_ROOM, Side};
use super::ring::Arrival;
use super::sleeping::{may_sleep, must_ring, wake};
use super::sock::{self, Slept};

/// How long an adaptive wait pauses before it gives the CPU away.
const PAUSE_MAX: Duration = Duration::from_micros(2);
/// How long it gives the CPU away before it sleeps: at least, and at most where waits have been that long. A peer that moves a megabyte
/// is worth waiting for; one that thinks is not.
pub(super) const YIELD_MIN: Duration = Duration::from_micros(20);
const YIELD_MAX: Duration = Duration::from_micros(500);
/// A CPU that was given away for longer than this went to another thread: who only waits should leave it to that one.
const YIELD_TAKEN: Duration = Duration::from_micros(5);
/// Waits without giving the CPU away after that; then it is tried again.
const WAITS_CROWDED: u32 = 16;
/// Looks at the ring before the first pause: a `pause` takes longer than a quick answer.
const LOOKS_BEFORE_PAUSE: u32 = 512;

/// Waits between two looks at the CPU, where the waits are short.
const WAITS_BETWEEN_CPU_LOOKS: u32 = 16;

/// What ended the last sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WokenBy {
    /// It has not ended, as far as this side was told.
    Nothing,
    /// The doorbell, and nothing else.
    Bell,
    /// The doorbell, as an event of an event loop.
    BellEvent,
    /// Perhaps the socket.
    Unknown,
}

impl ShmEndpoint {
    /// As `Endpoint::arm`.
    pub(super) fn arm_for_sleep(&mut self) -> bool {
        self.armed = true;
        let wants = if self.starved { SLEEPS_FOR_ROOM } else { SLEEPS_FOR_MESSAGE };
        let word = self.connection.layout.sleeping(self.connection.side);
        may_sleep(self.connection.segment.word(word), wants, || self.is_ready())
    }

    /// As `Endpoint::wait_or`.
    pub(super) fn sleep(
        &mut self,
        timeout: Option<Duration>,
        interrupt: Option<&Interrupt>,
    ) -> Result<(), TransportError> {
        self.flush()?;
        if self.armed {
            self.disarm();
        }
        self.waits = self.waits.wrapping_add(1);
        if self.waits.is_multiple_of(WAITS_BETWEEN_CPU_LOOKS) {
            self.publish_cpu();
        }
        // Without a pause and without the clock, for about as long as a small request takes.
        let may_spin = self.policy != WaitPolicy::Event && self.spin_pays();
        if self.is_ready() || (may_spin && (self.look(LOOKS_BEFORE_PAUSE) || self.is_ready())) {
            return Ok(());
        }
        self.publish_cpu();
        let now = Instant::now();
        let deadline = timeout.and_then(|timeout| now.checked_add(timeout));
        match self.policy {
            WaitPolicy::Event => {}
            WaitPolicy::Adaptive => {
                if self.spin_pays() && self.spin_briefly(now, deadline) {
                    return Ok(());
                }
            }
            WaitPolicy::Busy => {
                self.spin_until(deadline, interrupt);
                return Ok(());
            }
        }
        if !self.arm_for_sleep() || interrupt.is_some_and(|interrupt| !interrupt.may_sleep()) {
            return Ok(());
        }
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        self.counters.sleeps += 1;
        let connection = &self.connection;
        let slept = sock::sleep(
            connection.bell_in.as_fd(),
            connection.socket.as_fd(),
            interrupt.map(Interrupt::fd),
            left,
            connection.has_waiting(),
        );
        if let Some(interrupt) = interrupt {
            interrupt.woke(slept.as_ref().is_ok_and(|slept| slept.interrupt));
        }
        self.learn_wait(now.elapsed());
        let slept = slept.map_err(|error| TransportError::system("wait for the peer", error))?;
        // Still armed: the next `recv` disarms and silences the doorbell.
        self.woken_by = match slept {
            Slept { bell: true, socket: false, .. } => WokenBy::Bell,
            _ => WokenBy::Unknown,
        };
        Ok(())
    }

    /// Rings the peer's doorbell if it sleeps and would want to know.
    pub(super) fn wake_peer(&mut self) {
        let sent = std::mem::take(&mut self.sent_unflushed);
        let taken = std::mem::take(&mut self.taken_unflushed);
        if !sent && !taken {
            return;
        }
        let connection = &self.connection;
        let sleeping = connection.segment.word(connection.layout.sleeping(connection.side.peer()));
        if must_ring(sleeping, sent) {
            sock::ring(connection.bell_out.as_fd());
            self.counters.doorbells += 1;
        }
    }

    /// Something may be here to receive, or room to send.
    pub(super) fn is_ready(&self) -> bool {
        if !matches!(self.arrival().0, Arrival::Nothing) || !self.is_open() || !self.completions.is_empty() {
            return true;
        }
        if self.control_is_due() {
            return true;
        }
        self.starved && {
            let word = self.connection.layout.consumed(self.connection.side);
            let taken = self.connection.segment.word(word).load(Ordering::Acquire);
            taken != self.send_ring.taken()
        }
    }

    /// Pauses, then gives the CPU away, while that can pay; `true` when something came or the deadline passed.
    fn spin_briefly(&mut self, started: Instant, deadline: Option<Instant>) -> bool {
        let past = |now| deadline.is_some_and(|deadline| now >= deadline);
        loop {
            for _ in 0..16 {
                if self.is_ready() {
                    return true;
                }
                std::hint::spin_loop();
            }
            let now = Instant::now();
            if past(now) {
                return true;
            }
            let waited = now - started;
            if waited >= self.yield_max {
                return false;
            }
            if waited >= PAUSE_MAX {
                if self.crowded_waits > 0 {
                    self.crowded_waits -= 1;
                    return false;
                }
                std::thread::yield_now();
                // An interrupt takes it for as long once, another thread each time.
                let is_taken = now.elapsed() >= YIELD_TAKEN;
                if is_taken && self.cpu_was_taken {
                    self.crowded_waits = WAITS_CROWDED;
                }
                self.cpu_was_taken = is_taken && !self.cpu_was_taken;
                self.publish_cpu();
                if !self.spin_pays() {
                    return false;
                }
            }
        }
    }

    /// After a wait that ended in sleep: waits of this length are worth giving the CPU away for, or not.
    fn learn_wait(&mut self, waited: Duration) {
        self.yield_max = if waited <= YIELD_MAX {
            (waited * 2).clamp(YIELD_MIN, YIELD_MAX)
        } else {
            (self.yield_max / 2).max(YIELD_MIN)
        };
    }

    /// Busy waiting: until something came, the peer died, the deadline passed, or another thread wants this one.
    fn spin_until(&mut self, deadline: Option<Instant>, interrupt: Option<&Interrupt>) {
        for round in 1u32.. {
            if self.is_ready() {
                return;
            }
            let is_over = || deadline.is_some_and(|deadline| Instant::now() >= deadline);
            if round.is_multiple_of(64) && (interrupt.is_some_and(Interrupt::take) || is_over()) {
                return;
            }
            if round.is_multiple_of(POLLS_BETWEEN_SOCKET_LOOKS) {
                self.drain_control(CONTROL_PER_TURN);
            }
            std::hint::spin_loop();
        }
    }

    #[cold]
    pub(super) fn disarm(&mut self) {
        self.armed = false;
        let word = self.connection.layout.sleeping(self.connection.side);
        let is_rung = wake(self.connection.segment.word(word));
        let woken_by = std::mem::replace(&mut self.woken_by, WokenBy::Nothing);
        if self.hears_events && self.connection.side == Side::Server && woken_by != WokenBy::Bell {
            // Every write to an eventfd is an event of its own for a loop, so it can be left as it is; reading it would be one more
            // system call and one more event. What the socket has to say comes as an event of the socket.
            return self.publish_cpu();
        }
        let may_ring = is_rung || woken_by == WokenBy::Bell;
        let was_silenced = may_ring && sock::silence(self.connection.bell_in.as_fd());
        // The socket has something to say only when something else than the doorbell woke this side.
        self.socket_due |= !(was_silenced && matches!(woken_by, WokenBy::Bell | WokenBy::BellEvent));
        self.publish_cpu();
    }

    pub(super) fn publish_cpu(&mut self) {
        let cpu = current_cpu().wrapping_add(1);
        if cpu != self.cpu {
            self.cpu = cpu;
            let word = self.connection.layout.cpu(self.connection.side);
            self.connection.segment.word(word).store(cpu, Ordering::Relaxed);
        }
    }

    pub(super) fn peer_cpu(&self) -> u32 {
        let word = self.connection.layout.cpu(self.connection.side.peer());
        self.connection.segment.word(word).load(Ordering::Relaxed)
    }
}
