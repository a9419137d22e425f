//! The one place that waits: for the kernel, for servers, and for threads that connect.
//!
//! One thread does all of it. A request becomes a task, a future that asks the server without blocking; its session wakes it when the
//! answer is there. A read or write that has nothing in the way needs no task. So a request that waits, for a lock or for a server that is
//! away, keeps no other waiting.

use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use dafs_client::RegisteredBuf;
use futures_util::stream::{FuturesUnordered, Stream};
use rustix::event::{PollFd, PollFlags, poll};

use crate::callers::Ended;
use crate::kernel::device::Received;
use crate::kernel::request::Request;
use crate::ops::serve;
use crate::volume::Volume;

/// Requests that are taken before those that have begun are looked at again.
const TAKEN_MAX: usize = 32;

/// While something is in flight, the answer is looked for so long before the thread sleeps: a server on this host, or on a fast network,
/// answers sooner than a thread is woken.
const SPIN_TIME: Duration = Duration::from_micros(100);
/// After a spin in vain, so many waits are slept through at once; after each further one twice as many, up to this.
const PAUSE_MIN: u32 = 16;
const PAUSE_MAX: u32 = 4096;

/// A program that was answered is expected to ask again: for so long, as long as that pays.
const EXPECTED_TIME: Duration = Duration::from_micros(50);

/// What is being carried out.
type Tasks = FuturesUnordered<Pin<Box<dyn Future<Output = ()>>>>;

/// A task was woken that is to be polled.
#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// What is looked for before the thread sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Awaited {
    /// Another request of a program that was answered.
    Request,
    /// The server's answer to what is in flight.
    Answer,
}

impl Awaited {
    fn spin_time(self) -> Duration {
        match self {
            Self::Request => EXPECTED_TIME,
            Self::Answer => SPIN_TIME,
        }
    }
}

/// Whether to look for an answer before sleeping: not for a while where that was in vain.
#[derive(Debug)]
struct Spin {
    /// Waits to sleep through from now on.
    left: u32,
    /// As many after the next spin in vain.
    next: u32,
}

impl Spin {
    fn new() -> Self {
        Self { left: 0, next: PAUSE_MIN }
    }

    /// Asked once at the beginning of a wait.
    fn is_worth_it(&mut self) -> bool {
        let waits = self.left;
        self.left = waits.saturating_sub(1);
        waits == 0
    }

    fn paid(&mut self) {
        self.next = PAUSE_MIN;
    }

    fn was_in_vain(&mut self) {
        self.left = self.next;
        self.next = (2 * self.next).min(PAUSE_MAX);
    }
}

/// Serves a volume until it is unmounted.
pub(crate) struct EventLoop {
    volume: Rc<Volume>,
    tasks: Tasks,
    /// For answers.
    spin: Spin,
    /// For the next request, while nothing is in flight.
    expects: Spin,
    woken: Arc<Woken>,
    /// Operations that have ended and are to be told of.
    ended: Vec<Ended>,
    /// Takes the data of the next write.
    spare: Option<RegisteredBuf>,
    unmounted: bool,
    /// Becomes readable when the mount is to be taken away.
    stop: OwnedFd,
}

impl EventLoop {
    pub(crate) fn new(volume: Rc<Volume>, stop: OwnedFd) -> Self {
        Self {
            volume,
            tasks: Tasks::new(),
            spin: Spin::new(),
            expects: Spin::new(),
            woken: Arc::default(),
            ended: Vec::new(),
            spare: None,
            unmounted: false,
            stop,
        }
    }

    /// Runs until the mount is gone and every request is answered. `unmount` is called when that is asked for.
    pub(crate) fn run(mut self, mut unmount: impl FnMut()) -> std::io::Result<()> {
        // Since when an answer or a request is looked for, where one is.
        let mut spinning: Option<(Instant, Awaited)> = None;
        // It slept last, and nothing has come since.
        let mut is_silent = true;
        while !(self.unmounted && self.is_idle()) {
            let mut moved = self.take_requests()?;
            moved |= self.turn();
            if moved {
                is_silent = false;
                if let Some((_, awaited)) = spinning.take() {
                    self.spin(awaited).paid();
                }
                continue;
            }
            let awaited = if self.is_idle() { Awaited::Request } else { Awaited::Answer };
            match spinning {
                None if !is_silent && self.spin(awaited).is_worth_it() => {
                    spinning = Some((Instant::now(), awaited));
                    continue;
                }
                Some((since, awaited)) if since.elapsed() < awaited.spin_time() => {
                    // Whoever answers, or asks for more, is perhaps to run here.
                    std::thread::yield_now();
                    continue;
                }
                Some((_, awaited)) => self.spin(awaited).was_in_vain(),
                None => {}
            }
            (spinning, is_silent) = (None, awaited == Awaited::Request);
            if self.sleep()? {
                unmount();
            }
        }
        Ok(())
    }

    fn spin(&mut self, awaited: Awaited) -> &mut Spin {
        match awaited {
            Awaited::Request => &mut self.expects,
            Awaited::Answer => &mut self.spin,
        }
    }

    /// Every request is answered.
    fn is_idle(&self) -> bool {
        self.tasks.is_empty() && self.volume.transfers.is_empty()
    }

    /// Begins requests that the kernel has; whether there were any, or it has said that there will be no more.
    fn take_requests(&mut self) -> std::io::Result<bool> {
        let mut any = false;
        for _ in 0..TAKEN_MAX {
            if self.unmounted {
                break;
            }
            let mut data = match self.spare.take() {
                Some(data) => data,
                None => self.volume.take_buffer().map_err(std::io::Error::other)?,
            };
            match self.volume.device.receive(&mut data)? {
                Received::Nothing => {
                    self.spare = Some(data);
                    break;
                }
                Received::Unmounted => {
                    self.unmounted = true;
                    any = true;
                    break;
                }
                Received::Request(header, request) => {
                    any = true;
                    let mut data = match request {
                        Request::Write { .. } => Some(data),
                        _ => {
                            self.spare = Some(data);
                            None
                        }
                    };
                    if self.volume.begin_at_once(header.unique, &request, &mut data) {
                        continue;
                    }
                    self.tasks.push(Box::pin(serve(Rc::clone(&self.volume), header, request, data)));
                    self.run_tasks();
                }
            }
        }
        Ok(any)
    }

    /// Moves sessions and tasks along; whether there may be more to do.
    fn turn(&mut self) -> bool {
        let mut moved = false;
        for caller in self.volume.callers.all() {
            moved |= caller.turn(&mut self.ended);
        }
        self.ended.drain(..).for_each(|ended| self.volume.on_end(&ended));
        moved |= self.volume.give_up_interrupted();
        if self.volume.local.is_behind(self.volume.callers.own().number) {
            let volume = Rc::clone(&self.volume);
            self.tasks.push(Box::pin(async move { volume.hand_over_again().await }));
        }
        moved | self.run_tasks()
    }

    /// Lets those tasks go on that were woken; whether there may be more to do.
    fn run_tasks(&mut self) -> bool {
        self.woken.0.store(false, Ordering::Relaxed);
        let waker = Waker::from(Arc::clone(&self.woken));
        let mut context = Context::from_waker(&waker);
        let mut ended = false;
        while let Poll::Ready(Some(())) = Pin::new(&mut self.tasks).poll_next(&mut context) {
            ended = true;
        }
        // It stops when it has polled as many as there are, also where some were woken meanwhile, and says so by waking.
        ended | self.woken.0.load(Ordering::Relaxed)
    }

    /// Sleeps until there is something to do; whether the mount is to be taken away.
    fn sleep(&self) -> std::io::Result<bool> {
        let mut callers = self.volume.callers.all();
        callers.retain(|caller| !caller.is_over());
        if !callers.iter().all(|caller| caller.arm()) {
            return Ok(false);
        }
        let mut descriptors = vec![
            PollFd::new(&self.stop, PollFlags::IN),
            PollFd::new(self.volume.callers.wake_descriptor(), PollFlags::IN),
        ];
        if !self.unmounted {
            descriptors.push(PollFd::from_borrowed_fd(self.volume.device.as_fd(), PollFlags::IN));
        }
        descriptors.extend(
            callers.iter().map(|caller| PollFd::from_borrowed_fd(caller.descriptor(), PollFlags::IN)),
        );
        match poll(&mut descriptors, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let is_ready = |at: usize| descriptors[at].revents().intersects(PollFlags::IN);
        let (stop, woken) = (is_ready(0), is_ready(1));
        let mut count = [0; 8];
        if woken {
            let _ = rustix::io::read(self.volume.callers.wake_descriptor(), &mut count);
        }
        if stop {
            let _ = rustix::io::read(&self.stop, &mut count);
        }
        Ok(stop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spin_in_vain_pauses_ever_longer_until_one_pays() {
        let mut spin = Spin::new();
        let waits_until_it_is_worth_it = |spin: &mut Spin| (0..).find(|_| spin.is_worth_it()).unwrap();
        assert_eq!(waits_until_it_is_worth_it(&mut spin), 0);
        for pause in [16, 32, 64] {
            spin.was_in_vain();
            assert_eq!(waits_until_it_is_worth_it(&mut spin), pause);
        }
        (0..20).for_each(|_| spin.was_in_vain());
        assert_eq!(waits_until_it_is_worth_it(&mut spin), PAUSE_MAX);
        spin.paid();
        assert!(spin.is_worth_it(), "it goes on as long as it pays");
        spin.was_in_vain();
        assert_eq!(waits_until_it_is_worth_it(&mut spin), PAUSE_MIN);
    }
}
