//! From a checked [`Config`] to a server that serves.

mod running;

use std::io::Write;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;
use dafs_proto::session::Moment;
use dafs_proto::transport::shm::{ShmConfig, ShmDomain, ShmLimits};
use dafs_proto::transport::tcp::{self, TcpDomain};
use dafs_proto::transport::{Address, ConnectError, ConnectParams, Domain};
use dafs_proto::wire::{GatherSwitches, PAYLOAD_SIZE_MIN, Thresholds};

use crate::access::key_required;
use crate::calibrate::{self, Calibration};
use crate::config::{Config, ExportConfig, millis};
use crate::logging::{LogFormat, flood};
use crate::metrics::{self, MetricsServer};
use crate::reload::{self, Hangups, ReadAgain};
use crate::shared::settings::{ListenerInfo, Pipelining};
use crate::shared::{Reloaded, ServerState, budget};
use crate::storage::{self, Exports, Storage, StorageConfig};
use crate::worker::event_loop::{EventLoop, Stop};
use crate::worker::{Parts, Worker};

pub use running::Running;
use running::{pin, start_others};

/// Over tcp inline writes may be this many times the inline limit.
const TCP_WRITE_FACTOR: u32 = 4;
/// The same over RDMA, unless more slots than usual are configured: with the send queue's, 63 completions, which devices round up to 64.
const VERBS_RECV_DEPTH: u16 = 44;
/// Over RDMA inline writes may be this part of the inline limit.
const VERBS_WRITE_PART: u32 = 2;
/// Messages that a connection may hold beside one for every slot: callbacks and what is on its way.
const SPARE_RECEIVES: u16 = 16;
/// Payload of the largest message that every peer takes.
#[allow(clippy::cast_possible_truncation, reason = "a small constant")]
const PAYLOAD_MIN: u32 = PAYLOAD_SIZE_MIN as u32;

/// Serves until SIGTERM or SIGINT. Prints `listening <address>` on standard output for each listener when it is ready. On SIGHUP it applies
/// the keys and rules of exports that `read_again` returns.
pub fn run(config: Config, hangups: Hangups, read_again: ReadAgain) -> anyhow::Result<()> {
    budget::check_open_files(budget::open_files_max()).map_err(anyhow::Error::msg)?;
    // Also to measure a listener a file is written.
    outlive_file_size_limit().context("cannot watch for SIGXFSZ")?;
    let mut loops = prepare(&config, config.workers, |storage| storage)?;
    // Each drains by itself, so each hears of a signal by itself.
    let mut signals = Vec::new();
    for event_loop in &mut loops {
        let (read, write) = signal_pipe().context("cannot watch for signals")?;
        event_loop.watch_signals(read.as_raw_fd())?;
        signals.push((read, write));
    }
    let stops: Vec<Stop> = loops.iter().map(EventLoop::stop_handle).collect();
    if config.cluster.is_some() {
        stops.iter().try_for_each(Stop::stop_at_signals).context("cannot watch for signals")?;
    }
    let (first, others) = loops.split_at_mut(1);
    let event_loop = first.first_mut().context("no worker")?;
    let shared = Arc::clone(event_loop.worker().shared());
    let apply = move |config: &Config| tell(&shared.reload(config));
    reload::at_hangup(hangups, read_again, apply).context("cannot watch for SIGHUP")?;
    let bind = |address| {
        MetricsServer::bind(address).map_err(|error| {
            anyhow::anyhow!("cannot listen on --metrics {address}: {error}; choose a free port")
        })
    };
    let mut metrics = config.metrics_address.map(bind).transpose()?;
    let mut left_out = flood::Summary::default();
    let observe = |server: &Worker| {
        left_out.tell_if_due(std::time::Instant::now());
        let Some(metrics_server) = &mut metrics else { return };
        let render = || {
            let extras = metrics::Extras {
                budgets: server.shared().budget_states(),
                session_limits: server.shared().session_limit_states(),
                logins_refused: server.shared().logins_refused(),
                longest_turn: server.shared().longest_turn(),
                workers: server.statistics_of_each(),
                log_lines_left_out: flood::left_out(),
                cluster: server.shared().cluster.as_ref().map(|cluster| cluster.state()),
            };
            metrics::render_all(&server.statistics(), &extras)
        };
        if let Err(error) = metrics_server.serve(std::time::Instant::now(), render) {
            tracing::warn!(%error, "cannot continue to serve metrics");
            metrics = None;
        }
    };
    let stop_all = || stops.iter().for_each(Stop::stop);
    let another_failed = AtomicBool::new(false);
    std::thread::scope(|scope| {
        start_others(scope, others, &config, |_| {
            another_failed.store(true, Ordering::Relaxed);
            stop_all();
        })?;
        let served = pin(&config, 0)
            .and_then(|()| announce(&config, &event_loop.addresses()))
            .and_then(|()| event_loop.run(observe).context("cannot go on serving"));
        // Where it ended by itself, so do the others.
        served.inspect_err(|_| stop_all())
    })?;
    event_loop.worker().shared().close();
    drop(loops);
    dafs_proto::transport::finish_closing();
    left_out.tell();
    anyhow::ensure!(!another_failed.into_inner(), "cannot go on serving: a worker failed, as logged above");
    tracing::info!("stopped");
    Ok(())
}

/// Everything but the serving: storage opened, thresholds measured, listeners bound. The first loop has the listeners.
fn prepare(
    config: &Config,
    workers: usize,
    wrap: impl Fn(Box<dyn Storage>) -> Box<dyn Storage>,
) -> anyhow::Result<Vec<EventLoop>> {
    let exports = open_storage(config)?;
    let others = (1..workers).map(|_| exports.another());
    let others = others.collect::<Result<Vec<_>, _>>()?;
    let storages = std::iter::once(exports).chain(others).map(|exports| wrap(Box::new(exports)));
    let mut epoch = [0; 8];
    system_randomness(&mut epoch);
    let shared = ServerState::open(config.clone(), u64::from_le_bytes(epoch), workers)?;
    let storages = storages.map(|storage| shared.beside_others(storage));
    let storages = storages.collect::<std::io::Result<Vec<_>>>().context("cannot set up storage")?;
    let drain = millis(config.drain_ms);
    let began = std::time::Instant::now();
    let meetings = Arc::default();
    let loops = shared.workers().zip(storages).map(|(id, storage)| {
        let randomness = Box::new(system_randomness);
        let meetings = Arc::clone(&meetings);
        let parts = Parts { shared: Arc::clone(&shared), id, storage, randomness, meetings };
        let worker = Worker::new(parts, Moment::default());
        EventLoop::new(worker, config.poll, drain, began).context("cannot set up the event loop")
    });
    let mut loops: Vec<EventLoop> = loops.collect::<anyhow::Result<_>>()?;
    listen_everywhere(config, shared.memory_limits(), &mut loops)?;
    if let (Some(cluster), Some(first)) = (&shared.cluster, loops.first()) {
        cluster.announce(addresses_for_others(config, &first.addresses())?)?;
    }
    Ok(loops)
}

/// Where clients of the cluster find this server.
fn addresses_for_others(config: &Config, listening: &[Address]) -> anyhow::Result<Vec<String>> {
    let named = config.cluster.as_ref().map(|cluster| &cluster.addresses).filter(|named| !named.is_empty());
    if let Some(named) = named {
        return Ok(named.clone());
    }
    let remote = listening.iter().filter_map(|address| match address {
        Address::Tcp(ip) | Address::Verbs(ip) => Some((address, ip.ip())),
        _ => None,
    });
    let remote: Vec<_> = remote.collect();
    anyhow::ensure!(
        !remote.is_empty() && remote.iter().all(|(_, ip)| !ip.is_unspecified()),
        "cannot tell the cluster where clients find this server: it listens on every address of the host, or on none; \
         name it: --cluster-address tcp://HOST"
    );
    Ok(remote.into_iter().map(|(address, _)| address.to_string()).collect())
}

/// Binds all listeners. Where one name stands for several addresses, one that this host has is enough: `localhost` has one of IPv6 where
/// the system has none.
fn listen_everywhere(config: &Config, limits: ShmLimits, loops: &mut [EventLoop]) -> anyhow::Result<()> {
    let (mut bound, mut elsewhere) = (Vec::new(), Vec::new());
    for address in &config.listeners {
        match listen(config, address, limits.clone(), loops)? {
            Ok(()) => bound.push(address),
            // The default socket is for speed: who cannot have it has the others.
            Err(error) if config.listen.is_empty() && lacks_calls(&error) => {
                tracing::warn!(%address, %error, "not listening on the default socket");
            }
            Err(error) if is_not_of_this_host(&error) => elsewhere.push((address, error)),
            Err(error) => return Err(cannot_listen(address, error)),
        }
    }
    for (address, error) in elsewhere {
        let names = config.listen.iter().filter(|named| named.addresses.contains(address));
        let instead: Option<Vec<_>> =
            names.map(|named| named.addresses.iter().find(|other| bound.contains(other))).collect();
        let Some(instead) = instead.and_then(|others| others.first().copied()) else {
            return Err(cannot_listen(address, error));
        };
        let what = "not listening on one of the addresses of a name";
        if is_loopback(address) {
            tracing::info!(%address, %error, %instead, "{what}");
        } else {
            // The host may be about to have it.
            tracing::warn!(%address, %error, %instead, "{what}; if the host has it later, restart the server");
        }
    }
    Ok(())
}

fn is_loopback(address: &Address) -> bool {
    matches!(address, Address::Tcp(ip) | Address::Verbs(ip) if ip.ip().is_loopback())
}

fn is_not_of_this_host(error: &ConnectError) -> bool {
    let ConnectError::System { source, .. } = error else { return false };
    matches!(source.raw_os_error(), Some(libc::EADDRNOTAVAIL | libc::EAFNOSUPPORT))
}

/// The system lacks, or forbids, what a listener takes.
fn lacks_calls(error: &ConnectError) -> bool {
    matches!(error, ConnectError::System { source, .. } if source.kind() == std::io::ErrorKind::Unsupported)
}

/// Binds a listener, which the first loop watches and all of them know.
fn listen(
    config: &Config,
    address: &Address,
    limits: ShmLimits,
    loops: &mut [EventLoop],
) -> anyhow::Result<Result<(), ConnectError>> {
    let params = ConnectParams {
        recv_payload_max: write_inline_max(config, address),
        recv_depth: recv_depth(config, address),
        send_payload_max: config.inline_max.max(PAYLOAD_MIN),
        send_depth_max: slots_max(config, address).saturating_add(SPARE_RECEIVES),
        rdma_depth: 256,
        wait: config.poll,
        ..ConnectParams::default()
    };
    let domain = domain(address, limits)?;
    let listener = match domain.listen(address, &params) {
        Ok(listener) => listener,
        Err(error) => return Ok(Err(error)),
    };
    let (thresholds, gather) = thresholds(config, address, &params);
    let pipelining = pipelining(config);
    let info = ListenerInfo { address: listener.address().clone(), thresholds, gather, pipelining };
    let mut index = 0;
    for event_loop in loops.iter_mut() {
        index = event_loop.worker().add_listener(info.clone());
        event_loop.worker().offer_eager_buffers(index, Arc::clone(&domain));
    }
    let first = loops.first_mut().context("no worker")?;
    first.add_listener(listener, index).with_context(|| format!("cannot watch {address}")).map(Ok)
}

/// Why, once, and what to do. `anyhow` would append the cause to a text that has it already.
fn cannot_listen(address: &Address, error: ConnectError) -> anyhow::Error {
    use std::io::ErrorKind;
    let place = address.to_string();
    let place = format!("--listen {}", place.trim_start_matches("dafs+"));
    let ConnectError::System { source, .. } = error else {
        return anyhow::anyhow!("cannot listen on {place}: {error}");
    };
    let is_path = matches!(address, Address::Shm(_));
    let advice = match source.kind() {
        ErrorKind::AddrInUse if is_path => {
            "end the server that listens there, or choose another path if it is not a socket"
        }
        ErrorKind::AddrInUse => "end the program that listens there, or choose another port",
        ErrorKind::NotFound if is_path => "make the directory of the socket, or correct the path",
        ErrorKind::PermissionDenied if is_path => {
            "let the server's user write to the directory of the socket"
        }
        ErrorKind::PermissionDenied => "choose a port from 1024",
        ErrorKind::FileTooLarge => "let the server make larger files: ulimit -f unlimited",
        ErrorKind::AddrNotAvailable => "give an address of this host",
        _ if source.raw_os_error() == Some(libc::EAFNOSUPPORT) => "give an address of another family",
        _ => return anyhow::anyhow!("cannot listen on {place}: {source}"),
    };
    anyhow::anyhow!("cannot listen on {place}: {source}; {advice}")
}

/// Messages that a connection is ready to hold. Over RDMA the device keeps queues for them, idle or not.
fn recv_depth(config: &Config, address: &Address) -> u16 {
    let slots = slots_max(config, address);
    match address {
        Address::Verbs(_) if slots <= Config::default().buffered_slots_max => slots.min(VERBS_RECV_DEPTH),
        _ => slots.saturating_add(SPARE_RECEIVES),
    }
}

/// Requests that a session over a listener may have outstanding.
fn slots_max(config: &Config, address: &Address) -> u16 {
    match address {
        Address::Tcp(_) => config.slots_max,
        _ => config.slots_max.min(config.buffered_slots_max),
    }
}

/// Largest inline write, bytes. Over RDMA every message that may arrive has a buffer of this size posted for it, and fetching data by
/// RDMA costs hardly more than copying it. Over tcp a direct one costs a round trip more, in which the server asks for the data; and
/// what is ready to receive inline data is one buffer, lent while data arrives, not one for each request.
fn write_inline_max(config: &Config, address: &Address) -> u32 {
    let wanted = match address {
        Address::Tcp(_) => config.inline_max.saturating_mul(TCP_WRITE_FACTOR).min(tcp::PAYLOAD_MAX),
        Address::Verbs(_) => config.inline_max / VERBS_WRITE_PART,
        Address::Shm(_) | Address::Sim(_) => config.inline_max,
    };
    // Two paths fit, whatever the settings say.
    wanted.max(PAYLOAD_MIN)
}

fn domain(address: &Address, limits: ShmLimits) -> anyhow::Result<Arc<dyn Domain>> {
    match address {
        Address::Tcp(_) => Ok(Arc::new(TcpDomain::new())),
        Address::Shm(_) => Ok(Arc::new(ShmDomain::with_limits(ShmConfig::default(), limits))),
        #[cfg(feature = "verbs")]
        Address::Verbs(_) => Ok(Arc::new(dafs_proto::transport::verbs::VerbsDomain::new())),
        #[cfg(not(feature = "verbs"))]
        Address::Verbs(_) => anyhow::bail!("cannot use {address}: this server was built without RDMA"),
        Address::Sim(_) => anyhow::bail!("cannot use {address}: the simulated network exists only in tests"),
    }
}

fn open_storage(config: &Config) -> anyhow::Result<Exports> {
    let stored = config.exports.iter().map(|export| stored_export(config, export)).collect();
    let engine = config.storage_engine;
    let loop_keeps_identity = loop_keeps_identity(config);
    let pool_threads = config.storage_threads as usize;
    let storage = StorageConfig { engine, pool_threads, loop_keeps_identity, ..StorageConfig::default() };
    Ok(Exports::new(stored, &storage)?)
}

/// See [`StorageConfig::loop_keeps_identity`].
fn loop_keeps_identity(config: &Config) -> bool {
    config.listeners.iter().any(|address| matches!(address, Address::Verbs(_)))
}

fn stored_export(config: &Config, export: &ExportConfig) -> storage::ExportConfig {
    storage::ExportConfig {
        name: export.name.clone(),
        kind: export.kind.clone(),
        read_only: export.read_only,
        direct_io: export.direct_io || config.direct_io,
        local_locks: export.local_locks,
        root: export.root,
    }
}

/// How transfers over a listener are cut: as configured, or as they find out.
fn pipelining(config: &Config) -> Pipelining {
    let usual = Pipelining::default();
    let chunk_size = config.chunk_size.map_or(usual.chunk_size, u64::from);
    Pipelining { chunk_size, depth: config.pipeline_depth as usize, is_set: config.chunk_size.is_some() }
}

/// What the provider of a listener measures about itself, over a connection of its own.
fn thresholds(
    config: &Config,
    address: &Address,
    params: &ConnectParams,
) -> (Thresholds, Option<GatherSwitches>) {
    // A listener may receive less than it sends: what is measured reaches to the larger of the two limits.
    let recv_payload_max = params.recv_payload_max.max(config.inline_max);
    let both_ways = ConnectParams { recv_payload_max, ..*params };
    let measured =
        if config.calibrate { measure(address, &both_ways) } else { Err(anyhow::anyhow!("switched off")) };
    let (crossovers, gather) = match measured {
        Ok(calibration) => (calibration.crossovers, calibration.gather),
        Err(error) => {
            tracing::info!(%address, %error, "cannot measure thresholds; transfers up to the inline limit are inline");
            (calibrate::inline_up_to(config.inline_max, params.recv_payload_max), None)
        }
    };
    let (read_inline_max, write_inline_max) = (config.inline_max, params.recv_payload_max);
    (Thresholds { read_inline_max, write_inline_max, crossovers }, gather)
}

fn measure(address: &Address, params: &ConnectParams) -> anyhow::Result<Calibration> {
    let mut directory = None;
    let own = match address {
        Address::Tcp(address) => Address::Tcp(SocketAddr::new(address.ip(), 0)),
        Address::Verbs(address) => Address::Verbs(SocketAddr::new(address.ip(), 0)),
        _ => {
            let made = directory.insert(tempfile::Builder::new().prefix("dafs-calibrate-").tempdir()?);
            Address::Shm(made.path().join("socket"))
        }
    };
    let [server, client] = [domain(address, ShmLimits::default())?, domain(address, ShmLimits::default())?];
    let calibration = calibrate::measure(&*server, &client, &own, params, calibrate::BUDGET)?;
    tracing::debug!(%address, ?calibration, "measured");
    Ok(calibration)
}

fn announce(config: &Config, addresses: &[Address]) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    for address in addresses {
        writeln!(out, "listening {address}")?;
    }
    out.flush()?;
    if let (Some(address), Some(export)) = (addresses.last(), config.exports.first()) {
        let separator = if matches!(address, Address::Shm(_)) { ":" } else { "" };
        let key = match (config.access.keys.path(), key_required(address) || !export.keys.is_empty()) {
            (Some(path), true) => format!(" --key-file {}", path.display()),
            _ => String::new(),
        };
        let (command, address) = (client_command(), reachable(address));
        let advice = format!("{command} ls -l{key} '{address}{separator}/{}'", export.name);
        match config.log.format {
            // Who wants warnings only wants no advice.
            LogFormat::Text if !tracing::enabled!(tracing::Level::INFO) => {}
            // Advice that nobody reads is no reason not to serve.
            LogFormat::Text => drop(writeln!(std::io::stderr(), "try:  {advice}")),
            LogFormat::Json => tracing::info!("try: {advice}"),
        }
    }
    Ok(())
}

/// An address of this host, for one that stands for all of them.
fn reachable(address: &Address) -> Address {
    match address {
        Address::Tcp(all) if all.ip().is_unspecified() => {
            let own = if all.is_ipv4() { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() };
            Address::Tcp(SocketAddr::new(own, all.port()))
        }
        address => address.clone(),
    }
}

/// How this user runs the `dafs` command: it lies beside the server, or cargo builds it.
fn client_command() -> String {
    let beside =
        std::env::current_exe().ok().map(|own| own.with_file_name("dafs")).filter(|path| path.is_file());
    beside.map_or_else(|| "cargo run --release --bin dafs --".to_owned(), |path| path.display().to_string())
}

fn signal_pipe() -> std::io::Result<(UnixStream, UnixStream)> {
    let (read, write) = UnixStream::pair()?;
    read.set_nonblocking(true)?;
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
        signal_hook::low_level::pipe::register(signal, write.try_clone()?)?;
    }
    Ok((read, write))
}

/// From now on a write beyond the process's limit of a file's size fails: it would end the server, and so would any client.
fn outlive_file_size_limit() -> std::io::Result<()> {
    signal_hook::flag::register(libc::SIGXFSZ, Arc::default()).map(drop)
}

fn tell(reloaded: &Reloaded) {
    let Reloaded { keys, exports, needs_restart } = reloaded;
    tracing::info!(keys, exports, "reloaded keys and options of exports; sessions continue");
    if !needs_restart.is_empty() {
        tracing::warn!("not applied until the server is restarted: {}", needs_restart.join("; "));
    }
}

fn system_randomness(bytes: &mut [u8]) {
    getrandom::fill(bytes).expect("the system's random source works");
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use dafs_proto::transport::{Endpoint, EventFds, Listener, TransportError};

    use super::*;
    use crate::config::Listen;

    // [WIRE-30]
    #[test]
    fn every_listener_receives_two_paths_whatever_the_settings() {
        for inline_max in [1024, 2048, 8192, 1 << 20] {
            let config = Config { inline_max, ..Config::default() };
            let ip = "127.0.0.1:1".parse().unwrap();
            for address in [Address::Tcp(ip), Address::Verbs(ip), Address::Shm("s".into())] {
                assert!(write_inline_max(&config, &address) as usize >= PAYLOAD_SIZE_MIN, "{inline_max}");
            }
        }
    }

    // [ACC-155] The first is one that no host has.
    #[test]
    fn listener_skips_addresses_that_the_host_lacks() {
        let [elsewhere, here] = ["192.0.2.1:0", "127.0.0.1:0"].map(|ip| Address::Tcp(ip.parse().unwrap()));
        let listen = |names: &[&[&Address]]| {
            let named = |addresses: &&[&Address]| {
                let addresses = addresses.iter().copied().cloned().collect();
                Listen { text: "tcp://name".to_owned(), addresses }
            };
            let listen: Vec<_> = names.iter().map(named).collect();
            let listeners = listen.iter().flat_map(|named| named.addresses.clone()).collect();
            let config = Config { listeners, listen, calibrate: false, ..Config::default() };
            prepare(&config, 1, |storage| storage).map(|loops| loops[0].addresses().len())
        };
        for both in [[&elsewhere, &here], [&here, &elsewhere]] {
            assert_eq!(listen(&[&both]).unwrap(), 1);
            for names in [[&both[..1], &both[1..]], [&both[..], &[&elsewhere]]] {
                let error = listen(&names).unwrap_err().to_string();
                assert!(error.contains("192.0.2.1") && error.contains("address of this host"), "{error}");
            }
        }
    }

    /// Peers whose handshakes fail, one after the other.
    struct Flood {
        address: Address,
        left: u32,
        ticks: Arc<AtomicU32>,
        stop: Stop,
    }

    impl Listener for Flood {
        fn address(&self) -> &Address {
            &self.address
        }

        fn accept(&mut self) -> Result<Option<Box<dyn Endpoint>>, TransportError> {
            self.left = self.left.saturating_sub(1);
            if self.left == 0 {
                self.stop.stop();
            }
            Ok(None)
        }

        fn has_more(&self) -> bool {
            self.left > 0
        }

        fn expire_handshakes(&mut self) {
            self.ticks.fetch_add(1, Ordering::Relaxed);
        }

        fn event_fds(&self) -> EventFds {
            EventFds::new()
        }
    }

    // Handshakes are looked at in a tick that follows no stall.
    #[test]
    fn server_whose_start_took_long_has_not_stood_still() {
        let mut loops = prepare(&Config::default(), 1, |storage| storage).unwrap();
        let event_loop = &mut loops[0];
        event_loop.clock.began -= std::time::Duration::from_secs(1);
        let ticks = Arc::new(AtomicU32::new(0));
        let (address, stop) = (Address::Sim(1), event_loop.stop_handle());
        let flood = Flood { address, left: 1, ticks: Arc::clone(&ticks), stop };
        event_loop.add_listener(Box::new(flood), 0).unwrap();
        event_loop.run(|_| {}).unwrap();
        assert!(ticks.load(Ordering::Relaxed) > 0);
    }

    // [PROV-86] Each tick asks once, and is up to a second from the next.
    #[test]
    fn listener_with_more_is_polled_again_without_event() {
        let mut loops = prepare(&Config::default(), 1, |storage| storage).unwrap();
        let event_loop = &mut loops[0];
        let ticks = Arc::new(AtomicU32::new(0));
        let (address, stop) = (Address::Sim(1), event_loop.stop_handle());
        let flood = Flood { address, left: 100, ticks: Arc::clone(&ticks), stop };
        event_loop.add_listener(Box::new(flood), 0).unwrap();
        event_loop.run(|_| {}).unwrap();
        let ticks = ticks.load(Ordering::Relaxed);
        assert!(ticks < 50, "{ticks} ticks");
    }
}
