//! What the lock of a session guards: the engine, the endpoint that carries its messages, and the threads that wait.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use dafs_proto::session::Moment;
use dafs_proto::transport::{Endpoint, Received};
use dafs_proto::wire::Opcode;

use crate::driver::give_up::GiveUp;
use crate::driver::uncontended::Uncontended;
use crate::driver::watch::Watch;
use crate::engine::core::Core;
use crate::error::Error;
use crate::op::Op;
use crate::op::named::Named;
use crate::op::request::Broken;

/// Messages handled before who receives looks at its own operation again.
const TURN_MESSAGES_MAX: usize = 256;

/// The engine and what drives it. Derefs to the engine.
pub(crate) struct Driven {
    pub(crate) core: Core,
    /// `None` while the connection is broken.
    pub(crate) endpoint: Option<Box<dyn Endpoint>>,
    /// Something was queued in the endpoint since the last flush.
    pub(crate) unflushed: bool,
    /// Corks that are held: submissions wait for their ends.
    pub(crate) corks: usize,
    /// A thread is responsible for receiving; others wait to be told.
    pub(crate) leader: bool,
    /// That thread sleeps without the lock: who receives must arm the endpoint again.
    pub(crate) leader_sleeps: bool,
    /// Somebody who does not wait needs the connection again: for the background thread.
    pub(crate) reconnect_wanted: bool,
    /// Threads that wait to be told.
    pub(crate) followers: usize,
    pub(crate) reconnects: u64,
    pub(crate) give_up: GiveUp,
    /// Times that something was received.
    pub(crate) arrivals: u64,
    /// Descriptors of the session for programs' event loops.
    pub(crate) watches: Vec<Arc<Watch>>,
    /// How many of them are slept on: who receives must arm the endpoint again.
    pub(crate) armed_watches: usize,
    /// Since threads last met in a session that they share.
    pub(crate) uncontended: Uncontended,
}

impl Deref for Driven {
    type Target = Core;

    fn deref(&self) -> &Core {
        &self.core
    }
}

impl DerefMut for Driven {
    fn deref_mut(&mut self) -> &mut Core {
        &mut self.core
    }
}

impl Driven {
    pub(crate) fn new(core: Core, endpoint: Box<dyn Endpoint>) -> Self {
        Self {
            core,
            endpoint: Some(endpoint),
            unflushed: false,
            corks: 0,
            leader: false,
            leader_sleeps: false,
            reconnect_wanted: false,
            followers: 0,
            reconnects: 0,
            give_up: GiveUp::default(),
            arrivals: 0,
            watches: Vec::new(),
            armed_watches: 0,
            uncontended: Uncontended::default(),
        }
    }

    /// The connection is to be made again.
    pub(crate) fn is_broken(&self) -> bool {
        self.endpoint.is_none() && self.dead.is_none()
    }

    /// Sends what can be sent. Never blocks, and does not flush.
    pub(crate) fn send_some(&mut self) -> Result<(), Broken> {
        if let Some(endpoint) = &mut self.endpoint {
            self.unflushed |= self.core.poll_transmit(endpoint)?;
        }
        Ok(())
    }

    /// Pushes out what was queued in the endpoint.
    pub(crate) fn flush(&mut self) -> Result<(), Broken> {
        if std::mem::take(&mut self.unflushed)
            && let Some(endpoint) = &mut self.endpoint
        {
            endpoint.flush()?;
        }
        Ok(())
    }

    /// Hands the engine what arrived; returns whether anything did.
    pub(crate) fn receive(&mut self) -> Result<bool, Broken> {
        let Self { core, endpoint: Some(endpoint), .. } = self else { return Ok(false) };
        let mut any = false;
        for _ in 0..TURN_MESSAGES_MAX {
            match endpoint.recv()? {
                None => break,
                Some(Received::Immediate { data, size }) => core.handle_frame(data, size)?,
                Some(Received::Message { head, payload_len }) => {
                    core.handle_message(&head, payload_len, endpoint.payload())?;
                }
            }
            any = true;
        }
        if core.awaits_completions() {
            while let Some(completion) = endpoint.poll_completion() {
                any = true;
                core.handle_completion(completion)?;
            }
            self.unflushed |= core.fetch_unposted(endpoint);
        }
        self.arrivals += u64::from(any);
        Ok(any)
    }

    /// Time has passed: operations and the server are timed out, and the server hears of this side, and of what was given up. `Err` when it
    /// is silent for too long.
    pub(crate) fn tick(&mut self, now: Moment) -> Result<(), Broken> {
        let is_connected = self.endpoint.is_some();
        if let Some(endpoint) = &mut self.endpoint {
            self.core.signs.on_received(endpoint.traffic().received);
        }
        self.core.handle_time(now, is_connected)?;
        if !self.core.queue.is_empty() {
            self.send_some()?;
            // Whoever waited for the operation that was given up does not wait any more.
            self.flush()?;
        }
        Ok(())
    }

    /// Tells the server that the session ends, if a request can be sent now. Returns whether it was told.
    pub(crate) fn say_goodbye(&mut self) -> bool {
        if self.dead.is_some() || self.endpoint.is_none() || !self.session.can_send() {
            return false;
        }
        self.submit_first(Op::detached(Opcode::Bye, Named::default()));
        let _ = self.send_some().and_then(|()| self.flush());
        true
    }

    pub(crate) fn disconnect(&mut self) {
        self.watches.iter().for_each(|watch| watch.forget_connection());
        if let Some(mut endpoint) = self.endpoint.take() {
            endpoint.close();
        }
        self.unflushed = false;
    }

    /// The session is over: every operation ends with `error`, and no peer reaches their memory any more.
    pub(crate) fn die(&mut self, error: Error) {
        self.disconnect();
        self.core.end_session(error);
    }

    /// This process is a child of the one that has the session: it lets go of all without a word, for connection and memory are the
    /// parent's.
    pub(crate) fn leave_to_parent(&mut self) {
        std::mem::forget(self.endpoint.take());
        if !matches!(self.dead, Some(Error::Forked)) {
            self.leader = false;
            self.core.leave_to_parent();
        }
    }
}
