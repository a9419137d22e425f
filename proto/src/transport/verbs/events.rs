//! Asynchronous events: what a device reports about itself or a queue, outside of completions.
//!
//! Events are read by whoever wakes for them (a listener, or a connection that waits), and when a connection ends. The first to look reads
//! the events for all of this process, since librdmacm opens each device once. A connection learns of its own events here.
#![allow(unsafe_code, reason = "calls into libibverbs")]

use std::collections::HashMap;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use super::super::TransportError;
use super::super::util::lock;
use super::abort::AbortHandle;
use super::device::Device;
use super::ffi::{self, ibv_event_type as event_type};

/// Events taken in a row: a device that never stops leaves the rest to the next look.
const EVENTS_AT_ONCE: usize = 64;

/// What an event is about, by address, for comparison only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum About {
    /// A queue, mostly.
    Other(usize),
    Port(i32),
    Device,
}

/// What becomes of whom an event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Effect {
    /// It has ended, or will not work any more.
    Ends,
    /// It goes on, worse perhaps: people may want to know.
    Told,
    /// Nothing.
    None,
}

/// Events, their words, and what they do.
const EVENTS: [(event_type, &str, Effect); 9] = [
    (event_type::IBV_EVENT_CQ_ERR, "CQ_ERR: the completion queue ran over or failed", Effect::Ends),
    (event_type::IBV_EVENT_QP_FATAL, "QP_FATAL: the device failed the queue pair", Effect::Ends),
    (
        event_type::IBV_EVENT_QP_REQ_ERR,
        "QP_REQ_ERR: the peer sent what the device calls invalid",
        Effect::Ends,
    ),
    (
        event_type::IBV_EVENT_QP_ACCESS_ERR,
        "QP_ACCESS_ERR: the peer reached for memory that it may not",
        Effect::Ends,
    ),
    (event_type::IBV_EVENT_WQ_FATAL, "WQ_FATAL: the device failed a work queue", Effect::Ends),
    (
        event_type::IBV_EVENT_DEVICE_FATAL,
        "DEVICE_FATAL: the device failed; look at the kernel's log",
        Effect::Ends,
    ),
    (event_type::IBV_EVENT_SRQ_ERR, "SRQ_ERR: a shared receive queue failed", Effect::Told),
    // Connections outlast it, or the peer's silence ends them.
    (event_type::IBV_EVENT_PORT_ERR, "PORT_ERR: the port's link is down", Effect::Told),
    (event_type::IBV_EVENT_PORT_ACTIVE, "PORT_ACTIVE: the port's link is up", Effect::Told),
];

/// An event's words, and what it does. The kernel may send others than this header knows: codes stay numbers.
fn meaning(code: u32) -> (&'static str, Effect) {
    let found = EVENTS.iter().find(|(event, ..)| *event as u32 == code);
    found.map_or(("an event of no consequence", Effect::None), |(_, words, effect)| (*words, *effect))
}

/// What was said of a connection.
#[derive(Default)]
pub(super) struct Fate(OnceLock<&'static str>);

impl Fate {
    /// The end of the connection, if it was said.
    pub(super) fn error(&self, device: &str) -> Option<TransportError> {
        let said = self.0.get()?;
        let source = io::Error::new(io::ErrorKind::ConnectionAborted, format!("{device}: {said}"));
        Some(TransportError::system("RDMA", source))
    }
}

/// Connections of this process, by the queues that events name.
#[derive(Default)]
struct Table {
    queues: HashMap<usize, Entry>,
}

struct Entry {
    context: usize,
    fate: Arc<Fate>,
    abort: AbortHandle,
}

static TABLE: OnceLock<Mutex<Table>> = OnceLock::new();

fn table() -> MutexGuard<'static, Table> {
    lock(TABLE.get_or_init(Mutex::default))
}

impl Table {
    /// Tells whom it concerns; whose connections are to be broken.
    fn tell(&self, context: usize, about: About, words: &'static str) -> Vec<AbortHandle> {
        let concerned = self.queues.iter().filter(|(queue, entry)| match about {
            About::Other(named) => **queue == named,
            About::Device => entry.context == context,
            About::Port(_) => false,
        });
        let first = concerned.filter(|(_, entry)| entry.fate.0.set(words).is_ok());
        first.map(|(_, entry)| entry.abort.clone()).collect()
    }
}

/// A connection's place in the table; it leaves with this, which is dropped before the queues are.
pub(super) struct Listed {
    queues: [usize; 2],
}

/// Events about these queues, a queue pair and its completion queue, are told to `fate`.
pub(super) fn list(device: &Device, queues: [usize; 2], fate: &Arc<Fate>, abort: &AbortHandle) -> Listed {
    let mut table = table();
    for queue in queues {
        let entry =
            Entry { context: device.context() as usize, fate: Arc::clone(fate), abort: abort.clone() };
        table.queues.insert(queue, entry);
    }
    Listed { queues }
}

impl Drop for Listed {
    fn drop(&mut self) {
        let mut table = table();
        for queue in self.queues {
            table.queues.remove(&queue);
        }
    }
}

/// Where a device's events arrive. [`Device::open`] made it not block.
pub(super) fn descriptor(device: &Device) -> RawFd {
    // SAFETY: the device keeps its context open.
    unsafe { (*device.context()).async_fd }
}

/// Takes the events that are here: acknowledges all, logs those that matter, and ends what they concern.
pub(super) fn take(device: &Device) {
    for _ in 0..EVENTS_AT_ONCE {
        // Held from before the event is taken until it is told: a queue that it names is in the table until its owner has had the lock,
        // and so it is not another that has the address now.
        let table = table();
        let Some((code, about)) = next(device.context()) else { return };
        let (words, effect) = meaning(code);
        let concerned = match effect {
            Effect::Ends => table.tell(device.context() as usize, about, words),
            Effect::Told | Effect::None => Vec::new(),
        };
        drop(table);
        let device = &device.name;
        match effect {
            Effect::None => tracing::debug!(device, code, ?about, "event of the RDMA device"),
            Effect::Told => tracing::warn!(device, event = words, ?about, "event of the RDMA device"),
            Effect::Ends => {
                tracing::error!(device, event = words, ?about, "the RDMA device ends connections");
            }
        }
        for abort in concerned {
            // Its queues may be in that state already, or gone.
            let _: io::Result<bool> = abort.disconnect();
        }
    }
}

/// The next event, acknowledged already: whoever destroys a queue waits for that.
fn next(context: *mut ffi::ibv_context) -> Option<(u32, About)> {
    let mut event = MaybeUninit::<ffi::ibv_async_event>::zeroed();
    // SAFETY: the device keeps its context open, and it does not block (see `Device::open`); the call fills the event, for which zero
    // is valid.
    if unsafe { ffi::ibv_get_async_event(context, event.as_mut_ptr()) } != 0 {
        return None;
    }
    let event = event.as_mut_ptr();
    // SAFETY: filled by the call. The code is read as a number, which may be one that the binding's enumeration lacks; the union holds
    // an address, which is not followed, or an integer. Acknowledged once.
    unsafe {
        let code = (&raw const (*event).event_type).cast::<u32>().read();
        let element = &raw const (*event).element;
        let is = |one: event_type| code == one as u32;
        let about = if is(event_type::IBV_EVENT_PORT_ACTIVE) || is(event_type::IBV_EVENT_PORT_ERR) {
            About::Port(element.cast::<i32>().read())
        } else if is(event_type::IBV_EVENT_DEVICE_FATAL) {
            About::Device
        } else {
            About::Other(element.cast::<usize>().read())
        };
        ffi::ibv_ack_async_event(event);
        Some((code, about))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// [VERBS-25]
    #[test]
    fn events_end_those_that_they_name_and_no_others() {
        let mut table = Table::default();
        let fates: Vec<Arc<Fate>> = (0..4).map(|_| Arc::default()).collect();
        for (index, fate) in fates.iter().enumerate() {
            for queue in [10 * index, 10 * index + 1] {
                let entry = Entry {
                    context: if index < 3 { 100 } else { 200 },
                    fate: Arc::clone(fate),
                    abort: AbortHandle::of_nothing(),
                };
                table.queues.insert(queue, entry);
            }
        }
        let ended = || fates.iter().map(|fate| fate.error("dev").is_some()).collect::<Vec<_>>();
        assert_eq!(table.tell(100, About::Other(99), "of another").len(), 0);
        assert_eq!(table.tell(100, About::Port(1), "port").len(), 0);
        assert_eq!(ended(), [false; 4]);
        assert_eq!(table.tell(100, About::Other(11), "first").len(), 1);
        // Both of its queues say so; it ends once, with what was said first.
        assert_eq!(table.tell(100, About::Other(10), "second").len(), 0);
        assert_eq!(ended(), [false, true, false, false]);
        assert!(fates[1].error("dev").unwrap().to_string().contains("dev: first"));
        assert_eq!(table.tell(100, About::Device, "all").len(), 2);
        assert_eq!(ended(), [true, true, true, false]);
        assert!(fates[1].error("dev").unwrap().to_string().contains("first"));
    }

    /// [VERBS-25]
    #[test]
    fn event_that_ends_something_has_its_own_words() {
        let mut seen = std::collections::HashSet::new();
        for code in event_type::IBV_EVENT_CQ_ERR as u32..=event_type::IBV_EVENT_WQ_FATAL as u32 {
            let (words, effect) = meaning(code);
            assert!(effect == Effect::None || seen.insert(words), "{words}");
        }
        assert_eq!(seen.len(), 9);
        assert_eq!(meaning(1000).1, Effect::None);
    }
}
