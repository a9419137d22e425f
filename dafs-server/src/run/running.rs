//! Threads: one for each worker's loop.

use std::io;
use std::sync::{Arc, mpsc};
use std::thread::Scope;

use anyhow::Context;
use dafs_proto::transport::Address;
use rustix::thread::{CpuSet, sched_setaffinity};

use super::{loop_keeps_identity, prepare};
use crate::config::{Config, ExportConfig};
use crate::shared::ServerState;
use crate::storage::{self, Storage};
use crate::worker::event_loop::{EventLoop, Stop};

/// A server in threads of this process: for tests and benchmarks. Dropping it stops the server and waits for its end.
pub struct Running {
    addresses: Vec<Address>,
    stops: Vec<Stop>,
    shared: Arc<ServerState>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Running {
    /// Starts a server in a new thread.
    pub fn start(config: Config) -> anyhow::Result<Self> {
        Self::start_over(config, |storage| storage)
    }

    /// As [`Running::start`], over what `wrap` makes of the configured storage: for tests of storage that fails.
    pub fn start_over(
        config: Config,
        wrap: impl Fn(Box<dyn Storage>) -> Box<dyn Storage> + Send + 'static,
    ) -> anyhow::Result<Self> {
        Self::start_workers(config, 1, wrap)
    }

    /// As [`Running::start_over`], with several workers, each in a thread of its own and with storage of its own.
    pub fn start_workers(
        config: Config,
        workers: usize,
        wrap: impl Fn(Box<dyn Storage>) -> Box<dyn Storage> + Send + 'static,
    ) -> anyhow::Result<Self> {
        let (send, receive) = mpsc::channel();
        let thread = std::thread::Builder::new().name("dafs-server".into()).spawn(move || {
            let mut loops = match prepare(&config, workers, wrap) {
                Ok(loops) => loops,
                Err(error) => return drop(send.send(Err(error))),
            };
            let addresses = loops.first().map(EventLoop::addresses).unwrap_or_default();
            let stops: Vec<Stop> = loops.iter().map(EventLoop::stop_handle).collect();
            let shared = loops.first_mut().map(|first| Arc::clone(first.worker().shared()));
            std::thread::scope(|scope| {
                let (first, others) = loops.split_at_mut(1);
                if let Err(error) = start_others(scope, others, &config, |_| {}) {
                    return drop(send.send(Err(error)));
                }
                if let Err(error) = pin(&config, 0) {
                    stops.iter().for_each(Stop::stop);
                    return drop(send.send(Err(error)));
                }
                let Some(shared) = shared.clone() else { return };
                drop(send.send(Ok((addresses, stops, shared))));
                for event_loop in first {
                    let _ = tell_of(event_loop.run(|_| {}));
                }
            });
            shared.iter().for_each(|shared| shared.close());
        })?;
        let started = receive.recv().context("cannot start the server: its thread ended")??;
        let (addresses, stops, shared) = started;
        Ok(Self { addresses, stops, shared, thread: Some(thread) })
    }

    /// Where it listens, in the order of the configuration.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// Longest time between two polls of a loop, since the server began.
    pub fn longest_turn(&self) -> std::time::Duration {
        self.shared.longest_turn()
    }

    /// Asks it to drain and waits for its end.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.stops.iter().for_each(Stop::stop);
        if let Some(thread) = self.thread.take() {
            // A panic of the server has been reported by its own thread.
            let _ = thread.join();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}

/// Has a thread drive each of these loops, until it is stopped or fails, of which `failed` is told. Returns when all serve: connections are
/// dealt to all workers, so there are all, or there is no server.
pub(super) fn start_others<'s>(
    scope: &'s Scope<'s, '_>,
    loops: &'s mut [EventLoop],
    config: &'s Config,
    failed: impl Fn(&io::Error) + Clone + Send + 's,
) -> anyhow::Result<()> {
    let stops: Vec<Stop> = loops.iter().map(EventLoop::stop_handle).collect();
    let (entered, others) = mpsc::channel();
    for (number, event_loop) in (2..).zip(loops) {
        let (entered, failed) = (entered.clone(), failed.clone());
        let thread = std::thread::Builder::new().name(format!("dafs-worker-{number}"));
        let serves = move || {
            let result = enter_thread(config).and_then(|()| pin(config, number - 1));
            let serves = result.is_ok();
            drop((entered.send(result), entered));
            if serves && let Err(error) = tell_of(event_loop.run(|_| {})) {
                failed(&error);
            }
        };
        if let Err(error) = thread.spawn_scoped(scope, serves) {
            stops.iter().for_each(Stop::stop);
            return Err(error).context("cannot start a worker's thread");
        }
    }
    drop(entered);
    let all: anyhow::Result<()> = others.iter().collect();
    all.inspect_err(|_| stops.iter().for_each(Stop::stop))
}

/// The thread of this worker runs on its own CPU from now on, where it has one.
pub(super) fn pin(config: &Config, worker: usize) -> anyhow::Result<()> {
    let Some(&cpu) = config.worker_cpus.get(worker) else { return Ok(()) };
    let mut own = CpuSet::new();
    own.set(cpu);
    sched_setaffinity(None, &own).with_context(|| format!("cannot run a worker on CPU {cpu}"))
}

fn tell_of(served: io::Result<()>) -> io::Result<()> {
    served.inspect_err(|error| tracing::error!(%error, "cannot go on serving"))
}

/// A thread beside the one that opened storage is about to drive a worker.
fn enter_thread(config: &Config) -> anyhow::Result<()> {
    let acts_by_credentials = |export: &ExportConfig| export.kind.capabilities().acts_by_credentials;
    if config.exports.iter().any(acts_by_credentials) && !loop_keeps_identity(config) {
        storage::hold_back().context("cannot give up capabilities")?;
    }
    Ok(())
}
