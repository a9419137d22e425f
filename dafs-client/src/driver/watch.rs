//! A descriptor on which a program sleeps for a session and for other things at once.
//!
//! It is an epoll with the descriptors of the connection, a timer for the next deadline, and what other threads ring. The connection's are
//! exchanged when it is made again. Its user takes turns until nothing is left to do, arms it, and sleeps until it is readable.
#![allow(unsafe_code, reason = "providers name their descriptors by number")]

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dafs_proto::session::Moment;
use dafs_proto::transport::{EventFds, Interrupt};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

const CONNECTION: u64 = 0;
const TIMER: u64 = 1;
const CALL: u64 = 2;

/// One such descriptor.
pub(crate) struct Watch {
    epoll: OwnedFd,
    timer: OwnedFd,
    pub(super) call: Arc<Interrupt>,
    /// Its user asks which operations have ended.
    pub(super) keeps: bool,
    /// Changes under the session's lock alone.
    state: Mutex<Arming>,
}

#[derive(Default)]
pub(super) struct Arming {
    /// Which connection's descriptors are watched.
    connection: Option<u64>,
    fds: EventFds,
    /// When the timer rings.
    rings: Option<Moment>,
    pub(super) is_armed: bool,
    /// For tests: a wake-up that is lost is lost for good.
    #[cfg(test)]
    pub(super) has_no_timer: bool,
}

impl Watch {
    pub(super) fn new(keeps: bool) -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        let call = Arc::new(Interrupt::new()?);
        epoll::add(&epoll, &timer, EventData::new_u64(TIMER), EventFlags::IN)?;
        epoll::add(&epoll, call.fd(), EventData::new_u64(CALL), EventFlags::IN)?;
        Ok(Self { epoll, timer, call, keeps, state: Mutex::default() })
    }

    pub(super) fn state(&self) -> std::sync::MutexGuard<'_, Arming> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Watches the descriptors of this connection, which is open.
    pub(super) fn follow(&self, connection: u64, fds: EventFds) -> io::Result<()> {
        if self.state().connection == Some(connection) {
            return Ok(());
        }
        self.forget_connection();
        let mut state = self.state();
        for fd in fds {
            let flags = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
            epoll::add(&self.epoll, borrowed(fd), EventData::new_u64(CONNECTION), flags)?;
            state.fds.push(fd);
        }
        state.connection = Some(connection);
        Ok(())
    }

    /// The connection is about to be closed. Its peer may hold the same files, so that they do not leave the epoll by themselves.
    pub(crate) fn forget_connection(&self) {
        let mut state = self.state();
        state.connection = None;
        for fd in state.fds.drain(..) {
            let _ = epoll::delete(&self.epoll, borrowed(fd));
        }
    }

    /// The timer rings then, or earlier where that is set already.
    pub(super) fn ring_by(&self, now: Moment, longest: Duration) -> io::Result<()> {
        let (mut state, at) = (self.state(), now.after(longest));
        if state.rings.is_some_and(|rings| rings <= at) {
            return Ok(());
        }
        #[cfg(test)]
        if state.has_no_timer {
            return Ok(());
        }
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        // All zero would be never.
        let longest = longest.max(Duration::from_nanos(1));
        let timer = Itimerspec { it_interval: zero, it_value: Timespec::try_from(longest).unwrap_or(zero) };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &timer)?;
        state.rings = Some(at);
        Ok(())
    }

    /// Its user does not sleep any more: takes what there is to be told. Whether it was called; `None` when it was not armed.
    pub(super) fn disarm(&self) -> Option<bool> {
        let mut state = self.state();
        if !std::mem::take(&mut state.is_armed) {
            return None;
        }
        let mut events = [MaybeUninit::uninit(); 8];
        let mut rung = false;
        if let Ok((events, _)) = epoll::wait(&self.epoll, &mut events, Some(&Timespec::default())) {
            for event in events {
                match event.data.u64() {
                    TIMER => {
                        let _ = rustix::io::read(&self.timer, &mut [0; 8]);
                        state.rings = None;
                    }
                    CALL => rung = true,
                    _ => {}
                }
            }
        }
        Some(self.call.woke(rung))
    }
}

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

fn borrowed<'a>(fd: RawFd) -> BorrowedFd<'a> {
    // SAFETY: the endpoint that named it is open, and is not closed before the call returns for which this is: both have the session's
    // lock.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

/// Sleeps until one of the descriptors is readable, or for so long.
pub(crate) fn sleep_on<'a>(
    watches: impl Iterator<Item = &'a Watch>,
    limit: Option<Duration>,
) -> io::Result<()> {
    let mut fds: Vec<_> =
        watches.map(|watch| PollFd::from_borrowed_fd(watch.as_fd(), PollFlags::IN)).collect();
    match poll(&mut fds, limit.and_then(|limit| Timespec::try_from(limit).ok()).as_ref()) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}
