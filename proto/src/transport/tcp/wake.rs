//! Waiting. It spins where that pays, waits in the receiving call if nothing else is waited for, and otherwise in poll.
//!
//! Waiting in the receiving call is the quickest way, but no other thread can end it. So a wait that may be interrupted uses that call
//! only if the wait before was short, and for [`RECEIVE_MAX`] at most; then it continues in poll. After several long waits in a row, a
//! wait begins in poll.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;

use super::super::util::poll;
use super::super::{Interrupt, TransportError, WaitPolicy};
use super::endpoint::TcpEndpoint;
use super::sys::{self, Block, Left};

/// Pauses of the CPU between two receives in vain.
const PAUSES_BETWEEN_ASKS: u32 = 1;

/// Receives in vain between two looks at the clock.
const ASKS_BETWEEN_CLOCKS: u32 = 8;

/// Waits between two looks at which CPU the peer runs on.
const CPU_CHECK_INTERVAL: u32 = 32;

/// One spin lasts at most this long.
const SPIN_MAX: Duration = Duration::from_micros(50);

/// A wait that another thread may want to interrupt is in the receiving call for this long at most.
const RECEIVE_MAX: Duration = Duration::from_millis(2);

/// A wait with less time than this is not in the receiving call, whose clock is coarse: some ticks of the kernel.
const RECEIVE_TIMEOUT_MIN: Duration = Duration::from_millis(20);

impl TcpEndpoint {
    /// As `Endpoint::wait_or`, after the flush.
    pub(super) fn wait_for_news(
        &mut self,
        timeout: Option<Duration>,
        interrupt: Option<&Interrupt>,
    ) -> Result<(), TransportError> {
        let may_have_room = self.take_room();
        if self.has_news() || may_have_room || interrupt.is_some_and(Interrupt::take) {
            return Ok(());
        }
        let began = Instant::now();
        let deadline = timeout.and_then(|timeout| began.checked_add(timeout));
        if self.spin_for_input(deadline, interrupt)? {
            return Ok(());
        }
        let may_receive = match interrupt {
            Some(_) => !self.waits_long && timeout.is_none_or(|timeout| timeout >= RECEIVE_TIMEOUT_MIN),
            None => true,
        };
        if may_receive && self.can_wait_in_receive(timeout) {
            if interrupt.is_none() {
                // Only a spin has used up some of it.
                let left = match self.policy {
                    WaitPolicy::Event => timeout,
                    _ => deadline.map(|deadline| deadline.saturating_duration_since(Instant::now())),
                };
                return self.wait_in_receive(left).map(drop);
            }
            if self.wait_in_receive(Some(RECEIVE_MAX))? > 0 || self.has_news() {
                return Ok(());
            }
            self.waits_long = true;
        }
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        self.wait_in_poll(left, interrupt)?;
        if interrupt.is_some() {
            self.waits_long = began.elapsed() >= RECEIVE_MAX;
        }
        Ok(())
    }

    fn wait_in_poll(
        &mut self,
        timeout: Option<Duration>,
        interrupt: Option<&Interrupt>,
    ) -> Result<(), TransportError> {
        if interrupt.is_some_and(|interrupt| !interrupt.may_sleep()) {
            return Ok(());
        }
        self.link.counters.polls += 1;
        let wanted = if self.output.is_empty() { PollFlags::IN } else { PollFlags::IN | PollFlags::OUT };
        let socket = (self.link.socket.as_fd(), wanted);
        let slept = match interrupt {
            Some(interrupt) => {
                let slept = poll([socket, (interrupt.fd(), PollFlags::IN)], timeout);
                interrupt.woke(slept.as_ref().is_ok_and(|[_, rung]| !rung.is_empty()));
                slept.map(|[ready, _]| ready)
            }
            None => poll([socket], timeout).map(|[ready]| ready),
        };
        let ready = slept.map_err(|error| self.fail(TransportError::system("wait for the peer", error)))?;
        // Data, the end of the stream or an error.
        if ready.intersects(!PollFlags::OUT) {
            self.input.left = Left::Unknown;
        }
        if ready.contains(PollFlags::OUT) {
            self.flush_output()?;
            self.take_room();
        }
        Ok(())
    }

    /// Whoever was refused may have room now. Said once.
    fn take_room(&mut self) -> bool {
        self.refused_at.take_if(|sent| self.link.counters.bytes_sent > *sent).is_some()
    }

    /// Spins until something arrived or there is room, if that is likely to pay; `true` when it did.
    fn spin_for_input(
        &mut self,
        deadline: Option<Instant>,
        interrupt: Option<&Interrupt>,
    ) -> Result<bool, TransportError> {
        let busy = self.policy == WaitPolicy::Busy;
        if self.policy == WaitPolicy::Event || self.input.has_message() || !(busy || self.spin_is_worth_it())
        {
            return Ok(false);
        }
        let began = Instant::now();
        for ask in 1u32.. {
            if self.fill(Block::No)? > 0 || self.has_news() {
                self.spin.paid();
                return Ok(true);
            }
            if !self.output.is_empty() {
                self.flush_output()?;
                if self.take_room() {
                    return Ok(true);
                }
            }
            if ask.is_multiple_of(ASKS_BETWEEN_CLOCKS) {
                let now = Instant::now();
                if deadline.is_some_and(|deadline| now >= deadline) {
                    return Ok(busy);
                }
                if busy && interrupt.is_some_and(Interrupt::take) {
                    return Ok(true);
                }
                if !busy && now - began >= SPIN_MAX {
                    self.spin.missed();
                    return Ok(false);
                }
            }
            // Asking holds the socket's lock, which whoever brings the packets needs too.
            for _ in 0..PAUSES_BETWEEN_ASKS {
                std::hint::spin_loop();
            }
        }
        Ok(false)
    }

    /// What arrives is all there is to wait for, and may be received at once.
    fn can_wait_in_receive(&self, timeout: Option<Duration>) -> bool {
        self.output.is_empty() && self.input.can_block() && timeout.is_none_or(|timeout| !timeout.is_zero())
    }

    /// Waits in the receiving call itself: one system call instead of two.
    fn wait_in_receive(&mut self, timeout: Option<Duration>) -> Result<usize, TransportError> {
        if self.receive_timeout != Some(timeout) {
            sys::set_receive_timeout(self.link.socket.as_fd(), timeout)
                .map_err(|error| self.fail(TransportError::system("set how long to wait", error)))?;
            self.receive_timeout = Some(timeout);
        }
        self.fill(Block::Yes)
    }

    pub(super) fn spin_is_worth_it(&mut self) -> bool {
        if !self.spin.tries() {
            return false;
        }
        if self.loopback && self.waits.is_multiple_of(CPU_CHECK_INTERVAL) {
            self.peer_on_this_cpu = sys::peer_on_this_cpu(self.link.socket.as_fd());
        }
        self.waits = self.waits.wrapping_add(1);
        !self.peer_on_this_cpu
    }
}
