//! The loop: the one place of the server that waits.
//!
//! One thread watches listeners, connections, storage, signals and the time with mio, and moves what happened into [`Worker`]. Connections
//! are *hot* while messages arrive: the loop then polls them directly, without a system call if the provider needs none. A connection goes
//! *cold* when it is armed: from then on its descriptors wake the loop. How long a silent connection stays hot is the polling policy.

mod stop;

use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;

use std::time::{Duration, Instant};

use dafs_proto::back_off::BackOff;
use dafs_proto::session::Moment;
use dafs_proto::transport::{Address, Listener, WaitPolicy};
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token, Waker};

pub use self::stop::Stop;
use crate::cluster::Cluster;
use crate::shared::mail::Mail;
use crate::worker::ids::ConnectionKey;
use crate::worker::sched::{LIGHT_PAUSES, LIGHT_ROUNDS, LOOKS_LIGHT, StorageTurns};
use crate::worker::{Served, Worker};

/// How long a silent connection is asked before it goes cold, where that is likely to pay.
const SPIN: Duration = Duration::from_micros(50);
/// Between two looks at the kernel's events and the clock while connections are hot: turns that found nothing, or messages times eight.
const WORK_PER_POLL: usize = 256;
/// What a message counts in that: about as many turns as it takes.
const WORK_PER_MESSAGE: usize = 8;
/// What a turn counts that ended with its budget.
const WORK_PER_TURN: usize = WORK_PER_POLL / 4;
/// The same beside others: the kernel is asked after each round who else has come.
const WORK_PER_CONTENDED_TURN: usize = WORK_PER_POLL;
/// What a look that is a system call counts, beside the turn that it is made in.
const WORK_PER_CALL: usize = 3;
/// Rounds in vain before the CPU is first given away, longer than a client at hand takes to ask again; and between two times after that.
const SILENT_ROUNDS: u32 = 6;
const ROUNDS_BETWEEN_YIELDS: u32 = 2;
/// A CPU that comes back later than this went to who has more to do than to ask for something.
const YIELD_MAX: Duration = Duration::from_micros(200);
/// After some of those in a row, the CPU is kept for so many times: at first, and at most.
const YIELD_PAUSE_MIN: u32 = 64;
const YIELD_PAUSE_MAX: u32 = 4096;
/// Connections whose looks are system calls are spun on while there are no more than this: else the kernel's events are cheaper.
const CALLS_PER_TURN_MAX: usize = 4;
/// Rounds with the only hot connection in one turn, the bare looks before each, and what a round counts.
const ROUNDS_ALONE: usize = 8;
const LOOKS_ALONE: u32 = 32;
const WORK_PER_ROUND_ALONE: usize = 3;
/// Between two looks at leases and shares.
const TICK: Duration = Duration::from_millis(100);
/// A tick that is so much too late comes after a time in which this process stood still: it was stopped, or its machine was.
const STALL_MIN: Duration = Duration::from_millis(200);
/// Between two looks at handshakes and sessions while nobody is connected.
const IDLE_TICK: Duration = Duration::from_secs(1);
/// Connections accepted in one turn.
const ACCEPTS_PER_TURN: usize = 64;

const WAKE: Token = Token(0);
const STORAGE: Token = Token(1);
const SIGNALS: Token = Token(2);
const LISTENERS: usize = 16;
const CONNECTIONS: usize = 1 << 20;
/// Tokens of one connection, one for each of its descriptors.
const TOKENS_PER_CONNECTION: usize = 4;

/// The loop and everything it drives.
pub struct EventLoop {
    poll: Poll,
    worker: Worker,
    accepting: Accepting,
    hots: Hots,
    pub(crate) clock: Clock,
    pace: Pace,
    policy: WaitPolicy,
    stop: Stop,
    drain_for: Duration,
}

/// What is accepted from.
struct Accepting {
    listeners: Vec<(usize, Box<dyn Listener>)>,
    accepts: bool,
    // A listener had an event, or has more than it was asked for in one turn.
    due: bool,
}

/// The connections that are asked without an event.
#[derive(Default)]
struct Hots {
    hot: Vec<Hot>,
    // By place of the connection: it is in `hot`.
    is_hot: Vec<bool>,
    // By place: whom its descriptors' events are for.
    watched: Vec<Option<ConnectionKey>>,
}

/// What the loop knows of the time.
pub(crate) struct Clock {
    pub(crate) began: Instant,
    // As of the last look at the clock.
    now: Moment,
    // The longest time between two looks since the last tick.
    gap_max: Duration,
    next_tick: Moment,
    longest_turn: Duration,
}

/// What was done since the loop last looked elsewhere.
struct Pace {
    // Done since the last look at the kernel's events.
    work: usize,
    storage_turns: StorageTurns,
    // Messages handled, and how many were parked by then, as of storage's last turn.
    messages: usize,
    parked: u32,
    // Rounds in a row in which nobody had a message.
    silent_rounds: u32,
    // Whether the CPU comes back soon when it is given away.
    yields: BackOff,
}

struct Hot {
    key: ConnectionKey,
    // The first look at the clock after its last message; `None` until then.
    silent_since: Option<Moment>,
    look_is_system_call: bool,
    // In this round it asked for something and had all of it.
    is_light: bool,
    // Whether looking for its next request before large transfers go on pays.
    anticipation: BackOff,
}

impl Pace {
    fn give_cpu_away(&mut self) {
        if !self.yields.tries() {
            return;
        }
        let began = Instant::now();
        std::thread::yield_now();
        match began.elapsed() < YIELD_MAX {
            true => self.yields.paid(),
            false => self.yields.missed(),
        }
    }
}

impl EventLoop {
    /// A loop around a server; `drain_for` bounds how long operations in flight, and clients that take their replies,
    /// may keep it after a stop. `began` is when the server's time began, the same for all of its workers.
    pub fn new(
        mut worker: Worker,
        policy: WaitPolicy,
        drain_for: Duration,
        began: Instant,
    ) -> io::Result<Self> {
        let poll = Poll::new()?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKE)?);
        let wake = Arc::clone(&waker);
        // A loop that cannot be woken is gone already.
        worker.shared().inbox(worker.id()).on_mail(move || drop(wake.wake()));
        for fd in worker.storage().event_fds() {
            poll.registry().register(&mut SourceFd(&fd), STORAGE, Interest::READABLE)?;
        }
        Ok(Self {
            poll,
            worker,
            accepting: Accepting { listeners: Vec::new(), accepts: true, due: false },
            hots: Hots::default(),
            clock: Clock {
                began,
                now: Moment::default(),
                gap_max: Duration::ZERO,
                next_tick: Moment::default(),
                longest_turn: Duration::ZERO,
            },
            pace: Pace {
                work: 0,
                storage_turns: StorageTurns::new(Instant::now()),
                messages: 0,
                parked: 0,
                silent_rounds: 0,
                yields: BackOff::new(YIELD_PAUSE_MIN, YIELD_PAUSE_MAX),
            },
            policy,
            stop: Stop::new(waker),
            drain_for,
        })
    }

    /// Accepts a listener's connections from now on, for all workers. Each of them has it under the same index.
    pub fn add_listener(&mut self, listener: Box<dyn Listener>, index: usize) -> io::Result<()> {
        for fd in listener.event_fds() {
            let token = Token(LISTENERS + index);
            self.poll.registry().register(&mut SourceFd(&fd), token, Interest::READABLE)?;
        }
        self.accepting.listeners.push((index, listener));
        Ok(())
    }

    /// Ends the loop when this descriptor becomes readable: the read end of a signal pipe.
    pub fn watch_signals(&mut self, fd: RawFd) -> io::Result<()> {
        self.poll.registry().register(&mut SourceFd(&fd), SIGNALS, Interest::READABLE)
    }

    /// The worker that it drives.
    pub fn worker(&mut self) -> &mut Worker {
        &mut self.worker
    }

    /// Where it listens.
    pub fn addresses(&self) -> Vec<Address> {
        self.accepting.listeners.iter().map(|(_, listener)| listener.address().clone()).collect()
    }

    /// Returns a handle that ends the loop from another thread.
    pub fn stop_handle(&self) -> Stop {
        self.stop.clone()
    }

    /// Serves until stopped; then drains. `observe` is called with the server about ten times a second.
    pub fn run(&mut self, mut observe: impl FnMut(&Worker)) -> io::Result<()> {
        let mut events = Events::with_capacity(1024);
        let mut draining: Option<Moment> = None;
        self.look_at_clock();
        // Until now listeners were measured, and nobody could be heard: no stall.
        (self.clock.gap_max, self.clock.next_tick) = (Duration::ZERO, self.clock.now);
        self.worker.begin_serving();
        self.accept_all();
        self.read_mail();
        let cluster = self.worker.shared().cluster.clone();
        loop {
            if let Some(cluster) = &cluster
                && !cluster.is_current()
            {
                self.await_term(cluster)?;
            }
            let sleeps = self.hots.hot.is_empty() && !self.awaits_storage();
            if sleeps || self.pace.work >= WORK_PER_POLL {
                self.pace.work = 0;
                debug_assert!(!sleeps || self.worker.is_settled(), "asleep over something to be done");
                let untidy = self.worker.tidy_storage();
                // Before the clock is looked at to learn how long to sleep.
                self.note_turn();
                let rests = sleeps && !untidy && !self.accepting.due;
                let timeout = if rests { self.until_due() } else { Duration::ZERO };
                if rests {
                    self.worker.storage().watch(false);
                }
                let polled = self.poll.poll(&mut events, Some(timeout));
                self.worker.storage().watch(true);
                match polled {
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                    Err(error) => return Err(error),
                    Ok(()) => {}
                }
                self.look_at_clock();
                self.on_events(&events);
                if self.accepting.due {
                    self.accept_all();
                }
                if self.worker.window_end().is_some_and(|end| self.clock.now >= end) {
                    self.worker.end_windows();
                }
                if self.clock.now >= self.clock.next_tick {
                    self.tick();
                    observe(&self.worker);
                }
            }
            self.serve_hot();
            self.give_way();
            self.turn_to_storage();
            while let Some(key) = self.worker.take_runnable() {
                self.activate(key);
            }
            self.forget_closed();
            if draining.is_none() && self.stop.is_requested() {
                draining = Some(self.clock.now.after(self.drain_for));
                self.begin_drain();
            }
            if draining.is_some() {
                self.worker.let_clients_go();
            }
            if let Some(until) = draining
                && (self.is_drained() || self.clock.now >= until)
            {
                return Ok(());
            }
        }
    }

    /// Nobody has asked for anything for a while. Whoever will is perhaps a program that waits for this CPU.
    #[inline]
    fn give_way(&mut self) {
        let silent = self.pace.messages == 0 && !self.hots.hot.is_empty();
        self.pace.silent_rounds = if silent { self.pace.silent_rounds + 1 } else { 0 };
        if self.pace.silent_rounds >= SILENT_ROUNDS && self.policy == WaitPolicy::Adaptive {
            self.pace.silent_rounds -= ROUNDS_BETWEEN_YIELDS;
            self.pace.give_cpu_away();
        }
    }

    /// The server's term is over: nobody is answered before it knows that it may. Fails where another server has taken over.
    #[cold]
    fn await_term(&mut self, cluster: &Cluster) -> io::Result<()> {
        while !cluster.is_current() {
            if let Some(loss) = cluster.loss() {
                return Err(io::Error::other(loss));
            }
            if self.stop.is_requested() {
                return Err(io::Error::other("stopped while its term in the cluster was over"));
            }
            cluster.await_term(TICK);
        }
        // No client could be heard meanwhile.
        self.look_at_clock();
        Ok(())
    }

    /// Lets storage that was waited for go on, as far as it is its turn.
    #[inline]
    fn turn_to_storage(&mut self) {
        let messages = std::mem::take(&mut self.pace.messages);
        if self.worker.storage().pending() > 0 || self.worker.has_results() {
            self.take_storage_turn(messages);
        }
    }

    fn take_storage_turn(&mut self, messages: usize) {
        let began = Instant::now();
        let parked = self.worker.parked().wrapping_sub(self.pace.parked);
        self.pace.parked = self.worker.parked();
        let others = messages > parked as usize && self.worker.is_contended();
        let transfers_max = self.pace.storage_turns.due(began, others);
        let count = self.worker.poll_storage_turn(transfers_max);
        if transfers_max > 0 {
            self.pace.storage_turns.taken(began, Instant::now(), count);
        }
    }

    /// Storage is expected to finish something so soon that sleeping would cost more.
    fn awaits_storage(&mut self) -> bool {
        if self.worker.has_results() {
            return true;
        }
        let now = Instant::now();
        if self.worker.storage().pending() == 0 {
            self.pace.storage_turns.idle(now);
            return false;
        }
        self.pace.storage_turns.stays_awake(now, self.policy != WaitPolicy::Event)
    }

    /// The loop is about to ask the kernel what has happened since it last did.
    fn note_turn(&mut self) {
        let turn = Moment::default().after(self.clock.began.elapsed()).since(self.clock.now);
        if turn > self.clock.longest_turn {
            self.clock.longest_turn = turn;
            self.worker.shared().note_turn(turn);
        }
    }

    fn look_at_clock(&mut self) {
        let before =
            std::mem::replace(&mut self.clock.now, Moment::default().after(self.clock.began.elapsed()));
        self.clock.gap_max = self.clock.gap_max.max(self.clock.now.since(before));
        self.worker.set_now(self.clock.now);
    }

    /// How long there is nothing to do: until the next tick, or until a batch tells what it has gathered.
    fn until_due(&mut self) -> Duration {
        self.look_at_clock();
        let due = self.worker.window_end().map_or(self.clock.next_tick, |end| end.min(self.clock.next_tick));
        due.since(self.clock.now).max(Duration::from_millis(1))
    }

    fn tick(&mut self) {
        let gap = std::mem::take(&mut self.clock.gap_max);
        let stood_still = self.clock.now >= self.clock.next_tick.after(STALL_MIN);
        if stood_still {
            // What clients have said meanwhile has not been read yet.
            self.worker.on_stall(gap);
        }
        let has_more = self.worker.on_tick();
        if !stood_still {
            self.accepting.listeners.iter_mut().for_each(|(_, listener)| listener.expire_handshakes());
        }
        self.forget_closed();
        let idle = self.worker.sessions() == 0 && self.hots.hot.is_empty();
        self.clock.next_tick = match has_more {
            true => self.clock.now,
            false => self.clock.now.after(if idle { IDLE_TICK } else { TICK }),
        };
        if self.accepting.accepts {
            // Descriptors may be free again after an accept that failed for want of them.
            self.accept_all();
        }
    }

    fn on_events(&mut self, events: &Events) {
        for event in events {
            match event.token() {
                WAKE => self.read_mail(),
                // Every turn of the loop asks storage.
                STORAGE => {}
                SIGNALS => self.stop.request(),
                Token(token) if token >= CONNECTIONS => {
                    let token = token - CONNECTIONS;
                    let closed = event.is_read_closed() || event.is_error();
                    self.warm(token / TOKENS_PER_CONNECTION, token % TOKENS_PER_CONNECTION, closed);
                }
                Token(_) => self.accepting.due = true,
            }
        }
    }

    /// A descriptor of the connection in `place` had an event.
    fn warm(&mut self, place: usize, descriptor: usize, closed: bool) {
        if let Some(key) = self.hots.watched.get(place).copied().flatten() {
            if let Some(connection) = self.worker.connection(key) {
                connection.endpoint.on_event(descriptor, closed);
            }
            self.activate(key);
        }
    }

    fn activate(&mut self, key: ConnectionKey) {
        if key.index >= self.hots.is_hot.len() {
            self.hots.is_hot.resize(key.index + 1, false);
            self.hots.watched.resize(key.index + 1, None);
        }
        if !self.hots.is_hot[key.index] {
            let Some(connection) = self.worker.connection(key) else { return };
            let look_is_system_call = connection.endpoint.capabilities().is_stream;
            self.hots.is_hot[key.index] = true;
            let [pause_min, pause_max] = LIGHT_PAUSES;
            let anticipation = BackOff::new(pause_min, pause_max);
            self.hots.hot.push(Hot {
                key,
                silent_since: None,
                look_is_system_call,
                is_light: false,
                anticipation,
            });
            // It is first in the next round: those who are there have had their turn.
            let last = self.hots.hot.len() - 1;
            self.hots.hot.swap(0, last);
        }
    }

    fn accept_all(&mut self) {
        // A new connection may take the place of one that was just closed.
        self.forget_closed();
        let mut accepted = Vec::new();
        self.accepting.due = false;
        for (index, listener) in &mut self.accepting.listeners {
            for _ in 0..ACCEPTS_PER_TURN {
                match listener.accept() {
                    Ok(Some(endpoint)) => accepted.push((*index, endpoint)),
                    Ok(None) => break,
                    Err(error) => {
                        tracing::warn!(listener = %listener.address(), %error, "cannot accept a connection");
                        break;
                    }
                }
            }
            self.accepting.due |= listener.has_more();
        }
        for (listener, endpoint) in accepted {
            let to = self.worker.next_host();
            if to == self.worker.id() {
                let key = self.worker.add_connection(listener, endpoint);
                self.watch(key);
            } else {
                self.worker.shared().send(to, Mail::Accepted { listener, endpoint });
            }
        }
    }

    /// Serves a connection that the server has from now on.
    fn watch(&mut self, key: ConnectionKey) {
        let Some(connection) = self.worker.connection(key) else { return };
        let fds: Vec<RawFd> = connection.endpoint.event_fds().to_vec();
        let token = CONNECTIONS + key.index * TOKENS_PER_CONNECTION;
        let interest = Interest::READABLE | Interest::WRITABLE;
        let registered = (token..token + TOKENS_PER_CONNECTION).zip(&fds).try_for_each(|(token, fd)| {
            self.poll.registry().register(&mut SourceFd(fd), Token(token), interest)
        });
        match registered {
            Ok(()) => {
                self.activate(key);
                self.hots.watched[key.index] = Some(key);
            }
            Err(error) => {
                tracing::warn!(%error, "cannot watch a connection");
                self.worker.close(key, &error);
            }
        }
    }

    /// Other workers have written, perhaps with connections to serve.
    fn read_mail(&mut self) {
        for key in self.worker.read_mail() {
            self.watch(key);
        }
    }

    /// A round: every hot connection has its turn.
    fn serve_hot(&mut self) {
        let (mut place, mut large, mut light) = (0, false, 0u32);
        self.pace.work += 1;
        while place < self.hots.hot.len() {
            let key = self.hots.hot[place].key;
            let mut served = self.worker.serve(key);
            if self.hots.hot.len() == 1 && !self.hots.hot[place].look_is_system_call {
                // Nobody else is kept waiting: look again at once, which is quicker than another turn of the loop.
                for _ in 1..ROUNDS_ALONE {
                    if served != Served::Messages(0) {
                        break;
                    }
                    self.pace.work += WORK_PER_ROUND_ALONE;
                    let connection = self.worker.connection(key);
                    let Some(connection) = connection.filter(|c| c.endpoint.spin_pays()) else { break };
                    if connection.endpoint.gives_way() {
                        break;
                    }
                    connection.endpoint.look(LOOKS_ALONE);
                    served = self.worker.serve(key);
                }
            }
            let keep = match served {
                Served::Closed => false,
                Served::Budget(messages) => {
                    self.on_budget(place, messages);
                    large = true;
                    true
                }
                Served::Messages(count) => {
                    if count == 0 && self.worker.connection(key).is_some_and(|c| c.endpoint.gives_way()) {
                        self.pace.work += WORK_PER_POLL;
                    }
                    self.hots.hot[place].is_light = count > 0;
                    light += u32::from(count > 0);
                    self.stays_hot(place, count)
                }
            };
            if keep {
                place += 1;
            } else {
                self.hots.hot.swap_remove(place);
                self.hots.is_hot[key.index] = false;
            }
        }
        if large && light > 0 && self.worker.is_contended() {
            self.serve_light(light);
        }
    }

    #[inline]
    fn on_budget(&mut self, place: usize, messages: usize) {
        let turn = if self.worker.is_contended() { WORK_PER_CONTENDED_TURN } else { WORK_PER_TURN };
        self.on_messages(place, messages);
        self.pace.work += turn.saturating_sub(WORK_PER_MESSAGE * messages);
        self.hots.hot[place].is_light = false;
    }

    #[inline]
    fn on_messages(&mut self, place: usize, messages: usize) {
        self.pace.messages += messages;
        self.pace.work += WORK_PER_MESSAGE * messages;
        self.hots.hot[place].silent_since = None;
    }

    /// Before large transfers go on: clients that asked for little are perhaps back already, and are served if so.
    fn serve_light(&mut self, count: u32) {
        let looks = (LOOKS_LIGHT / count).max(1);
        for round in 0..LIGHT_ROUNDS {
            let mut came = 0;
            for place in 0..self.hots.hot.len() {
                let hot = &mut self.hots.hot[place];
                if !hot.is_light || hot.look_is_system_call || (round == 0 && !hot.anticipation.tries()) {
                    hot.is_light = false;
                    continue;
                }
                let key = hot.key;
                let here = self
                    .worker
                    .connection(key)
                    .filter(|connection| connection.endpoint.spin_pays())
                    .is_some_and(|connection| connection.endpoint.look(looks));
                if !here {
                    // Having been back in an earlier round is enough.
                    if round == 0 {
                        self.hots.hot[place].anticipation.missed();
                    }
                    self.hots.hot[place].is_light = false;
                    continue;
                }
                self.hots.hot[place].anticipation.paid();
                match self.worker.serve(key) {
                    Served::Messages(messages) => {
                        self.on_messages(place, messages);
                        came += 1;
                    }
                    Served::Budget(messages) => self.on_budget(place, messages),
                    // The next round takes it out.
                    Served::Closed => self.hots.hot[place].is_light = false,
                }
            }
            if came == 0 {
                break;
            }
        }
    }

    /// Whether a connection that has nothing more now is asked again without waiting for an event.
    #[inline]
    fn stays_hot(&mut self, place: usize, messages: usize) -> bool {
        let few = self.hots.hot.len() <= CALLS_PER_TURN_MAX;
        let hot = &mut self.hots.hot[place];
        self.pace.work += if hot.look_is_system_call { WORK_PER_CALL } else { 0 };
        if messages > 0 {
            self.pace.messages += messages;
            self.pace.work += WORK_PER_MESSAGE * messages;
            hot.silent_since = None;
            if self.policy == WaitPolicy::Busy {
                return true;
            }
        } else if self.policy != WaitPolicy::Event
            && self.pace.work < WORK_PER_POLL
            && (few || !hot.look_is_system_call)
            && (self.policy == WaitPolicy::Busy || self.worker.spin_pays(hot.key))
        {
            // Until the next look at the clock nothing is decided.
            return true;
        }
        let key = hot.key;
        let since = *hot.silent_since.get_or_insert(self.clock.now);
        let Some(connection) = self.worker.connection(key) else { return false };
        let asks_on = match self.policy {
            WaitPolicy::Busy => true,
            WaitPolicy::Event => false,
            WaitPolicy::Adaptive => {
                connection.endpoint.spin_pays()
                    && (few || !hot.look_is_system_call)
                    && (messages > 0 || self.clock.now < since.after(SPIN))
            }
        };
        asks_on || !connection.endpoint.arm()
    }

    /// Lets go of what belonged to closed connections. Their descriptors are closed, which took them out of the poll.
    fn forget_closed(&mut self) {
        if !self.worker.has_closed() {
            return;
        }
        let registry = self.poll.registry();
        self.worker.send_departures(|fd| {
            if let Err(error) = registry.deregister(&mut SourceFd(&fd)) {
                tracing::warn!(%error, "cannot stop watching a connection");
            }
        });
        for closed in self.worker.take_closed() {
            if let Some(watched) =
                self.hots.watched.get_mut(closed.index).filter(|watched| **watched == Some(closed))
            {
                *watched = None;
            }
            if let Some(place) = self.hots.hot.iter().position(|hot| hot.key == closed) {
                self.hots.hot.swap_remove(place);
                self.hots.is_hot[closed.index] = false;
            }
        }
        self.accepting.listeners.iter_mut().for_each(|(_, listener)| listener.descriptors_freed());
    }

    /// Whether all that clients have asked for is answered, and the answers are with the provider's peers.
    fn is_drained(&self) -> bool {
        // A server that never sleeps has every connection hot for ever.
        let all_silent =
            self.policy == WaitPolicy::Busy && self.hots.hot.iter().all(|h| h.silent_since.is_some());
        (self.hots.hot.is_empty() || all_silent) && !self.worker.has_unfinished() && !self.worker.has_unsent()
    }

    fn begin_drain(&mut self) {
        tracing::info!(operations = self.worker.in_flight(), sessions = self.worker.sessions(), "draining");
        self.accepting.accepts = false;
        self.accepting.listeners.clear();
        self.worker.drain();
    }
}
