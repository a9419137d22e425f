use std::ffi::OsStr;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dafs_proto::address::{Address, Location, Url};
use dafs_proto::transport::{ConnectError, Domain, Provider};
use dafs_proto::wire::{
    Crossovers, GatherSwitches, LimitsReply, MountReply, Opcode, SessionId, Statistics, Thresholds,
    decode_message_pack, encode_message_pack,
};

use crate::api::dir::{Dir, Export, check_name, forms};
use crate::api::reply::{decoded, done};
use crate::clock::{Clock, SystemClock};
use crate::config::{Background, Config, Identity};
use crate::connect::servers::{Servers, location_of};
use crate::connect::{self, Server, turns, ways};
use crate::driver::background::{self, Threads};
use crate::driver::calls::Calls;
use crate::driver::driven::Driven;
use crate::driver::fork;
use crate::driver::pending::{Call, Pending};
use crate::driver::{Owner, SharedSession};
use crate::engine::choice::{Question, as_kept};
use crate::engine::core::Core;
use crate::error::{Error, Result};
use crate::handle::node::Reopen;
use crate::memory::RegisteredBuf;
use crate::method::io_path::{Circumstances, Decision, Direction, Form, Pieces, Registration, decide};
use crate::method::noncontiguous::Noncontiguous;
use crate::method::refined::Refined;
use crate::op::Op;
use crate::op::named::Named;

/// A session with a server. A clone is the same session, which ends when the last clone, export and file of it is dropped.
///
/// All methods may be called from any thread. A session survives its connection: when that breaks the next call connects again, and
/// nothing is lost or done twice. [`Error::InDoubt`], [`Error::Stale`] and [`Error::WritesLost`] say what a restart of the server leaves
/// open.
#[derive(Clone)]
pub struct Session {
    pub(crate) owner: Arc<Owner>,
}

/// What was agreed with the server.
#[derive(Clone, Debug)]
pub struct Agreed {
    /// The session.
    pub session: SessionId,
    /// Requests outstanding at most.
    pub slots: u16,
    /// Inline limits and crossovers, as the server exports them.
    pub thresholds: Thresholds,
    /// Largest inline read over this connection, bytes.
    pub read_inline_max: u32,
    /// Largest inline write over this connection, bytes.
    pub write_inline_max: u32,
    /// Largest single read or write, bytes; larger ones are cut.
    pub transfer_size_max: u32,
    /// Open handles at most.
    pub handles_max: u32,
    /// Silence after which this side speaks, milliseconds.
    pub keep_alive_ms: u32,
    /// The server keeps a silent session for this long, milliseconds.
    pub lease_ms: u32,
    /// Ordinary memory is registered for single operations.
    pub registers_ordinary_memory: bool,
    /// Larger unstable writes are cut into inline messages, where direct transfers are faster at no size up to the inline limit.
    pub cuts_inline_writes: bool,
    /// Bytes of a piece of memory from which gathering is faster than packing, as the server exports it; `None` where it was not measured.
    pub gather: Option<GatherSwitches>,
    /// Addresses of other servers with which the session can go on, as this one told them.
    pub servers: Vec<String>,
    /// Of several servers: a silent one is given up after this long, and another one asked, milliseconds.
    pub term_ms: Option<u32>,
}

/// Submissions that leave together: [`Session::cork`].
#[must_use = "a cork ends where it is dropped"]
pub struct Cork<'a> {
    owner: Arc<Owner>,
    life: PhantomData<&'a Session>,
}

impl Cork<'_> {
    /// The same, for whoever cannot borrow the session for so long.
    pub fn into_owned(self) -> Cork<'static> {
        // That of this one goes when it is dropped.
        let owner = Arc::clone(&self.owner);
        owner.shared.lock().corks += 1;
        Cork { owner, life: PhantomData }
    }
}

impl std::fmt::Debug for Cork<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Cork({})", self.owner.shared.servers.name())
    }
}

impl Drop for Cork<'_> {
    fn drop(&mut self) {
        let shared = &self.owner.shared;
        let mut core = shared.lock();
        core.corks -= 1;
        shared.push(&mut core, false);
    }
}

impl Session {
    /// Connects to the server that a URL names, such as `dafs://host/export/path`, `dafs+tcp://host:port` or
    /// `dafs+shm:///socket`; export and path are not looked at.
    ///
    /// `dafs://` takes shared memory when the server is on this host and its socket answers (`$DAFS_SHM_SOCKET`, or
    /// for the default port `/run/dafs/dafs.sock` or `$XDG_RUNTIME_DIR/dafs.sock`), else RDMA where a device has a route to
    /// the host (a second at most), else TCP; [`Session::provider`] tells. Blocks for `config.connect_timeout` per address at most.
    ///
    /// Of several servers (`dafs://a,b:12050/export`, or a name of `/etc/dafs/clusters`) the first takes the session that can be reached
    /// and has room. A second at most is waited for each. Shared memory is not used then, since the session is to go on with the others.
    pub fn connect(url: impl AsRef<OsStr>, config: &Config) -> Result<Self> {
        Self::connect_url(&Url::parse(url.as_ref())?, config)
    }

    /// As [`Session::connect`], for a URL that was parsed already.
    pub fn connect_url(url: &Url, config: &Config) -> Result<Self> {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
        let servers = url.servers()?;
        let names: Vec<String> = servers.iter().map(ToString::to_string).collect();
        turns::in_turn(&names, config.connect_timeout, &*clock, |index, time_max| {
            Self::connect_to(url, (&servers, index), (config, time_max), &clock)
        })
    }

    /// By the first way to one of several servers that answers.
    fn connect_to(
        url: &Url,
        (servers, index): (&[Location], usize),
        (config, time_max): (&Config, Duration),
        clock: &Arc<dyn Clock>,
    ) -> Result<Self> {
        let mut failed = None;
        // What was tried before what is tried now.
        let mut tried: Vec<String> = Vec::new();
        for mut candidate in ways::candidates(url.scheme, &servers[index], servers.len() > 1)? {
            let name = candidate.server.name.clone();
            for why in tried.iter().rev() {
                candidate.server.reason = format!("{why}; {}", candidate.server.reason);
            }
            let begun = Self::begin(
                candidate.domain,
                Servers::new(candidate.server, servers),
                (config, time_max),
                Arc::clone(clock),
                true,
            );
            match begun {
                Ok(session) => return Ok(session),
                Err(error @ (Error::Handshake(_) | Error::Peer(_))) => return Err(error),
                Err(error) => {
                    tracing::debug!("{name}: {error}");
                    tried.extend(candidate.without.map(|without| format!("{without}: {error}")));
                    failed = Some(error);
                }
            }
        }
        Err(failed.unwrap_or_else(|| Error::Invalid(format!("{url} names no address"))))
    }

    /// Connects over a given provider, with a given clock: for simulation, and for sessions that share registered
    /// memory. No thread of the library is started unless `config.background` is [`Background::Progress`]; without one
    /// [`Pending::test`] connects again itself, and blocks meanwhile.
    pub fn connect_with(
        domain: Arc<dyn Domain>,
        address: Address,
        config: &Config,
        clock: Arc<dyn Clock>,
    ) -> Result<Self> {
        Self::connect_with_any(domain, &[address], config, clock)
    }

    /// As [`Session::connect_with`], with the first of several servers that takes the session. Each has the same files, and the session
    /// goes on with any of them.
    pub fn connect_with_any(
        domain: Arc<dyn Domain>,
        addresses: &[Address],
        config: &Config,
        clock: Arc<dyn Clock>,
    ) -> Result<Self> {
        let mut config = config.clone();
        if config.background == Background::KeepAlive {
            config.background = Background::None;
        }
        let names: Vec<String> = addresses.iter().map(Address::to_string).collect();
        let locations: Vec<Location> = addresses.iter().map(location_of).collect();
        turns::in_turn(&names, config.connect_timeout, &*clock, |index, time_max| {
            let server = Server {
                provider: domain.provider(),
                name: names[index].clone(),
                address: addresses[index].clone(),
                reason: "the program chose it".to_owned(),
                attempt_time_max: None,
                connect_as: None,
            };
            let servers = Servers::new(server, &locations);
            Self::begin(Arc::clone(&domain), servers, (&config, time_max), Arc::clone(&clock), false)
        })
    }

    /// Another session with this one's server, by the same way and with the same settings, for another user: it acts as `who`. Registered
    /// buffers of either session can be used in both.
    ///
    /// A process of root makes the connection as that user, for servers that ask the kernel who connects. A process of somebody else can
    /// only claim to be him, which servers believe of holders of some keys. Blocks.
    pub fn connect_as(&self, who: Identity) -> Result<Self> {
        let is_root = rustix::process::geteuid().is_root();
        let connect_as = is_root.then(|| who.clone());
        self.another(connect_as, Some(who))
    }

    /// Another session with this one's server, by the same way, with the same settings and for the same user, for a program that goes on
    /// where this one has ended. Registered buffers of either session can be used in both. Blocks.
    pub fn connect_again(&self) -> Result<Self> {
        let shared = &self.owner.shared;
        self.another(shared.servers.current().connect_as.clone(), shared.config.identity.clone())
    }

    fn another(&self, connect_as: Option<Identity>, identity: Option<Identity>) -> Result<Self> {
        let shared = &self.owner.shared;
        let config = Config { identity, ..shared.config.clone() };
        let (domain, clock) = (&shared.domain, &shared.clock);
        // Names that cannot be resolved now are of servers that cannot be reached.
        let servers: Vec<_> = shared.servers.round().filter_map(Result::ok).collect();
        let names: Vec<String> = servers.iter().map(|server| server.name.clone()).collect();
        turns::in_turn(&names, config.connect_timeout, &**clock, |index, time_max| {
            let server = Server { connect_as: connect_as.clone(), ..Server::clone(&servers[index]) };
            let servers = shared.servers.for_another(server);
            let (domain, may_start) = (Arc::clone(domain), shared.threads.may_start());
            Self::begin(domain, servers, (&config, time_max), Arc::clone(clock), may_start)
        })
    }

    fn begin(
        domain: Arc<dyn Domain>,
        servers: Servers,
        (config, time_max): (&Config, Duration),
        clock: Arc<dyn Clock>,
        may_start_threads: bool,
    ) -> Result<Self> {
        let client_id = match config.client_id.or_else(connect::host_client_id) {
            Some(client_id) => client_id,
            None => {
                let mut client_id = [0; 16];
                connect::random(&mut client_id)?;
                client_id
            }
        };
        let mut config = config.clone();
        config.client_id = Some(client_id);
        // The session is its, whoever the process is when it connects again.
        config.identity.get_or_insert_with(connect::process::identity);
        config.credits = config.credits.clamp(1, crate::config::CREDITS_MAX);
        let server = servers.current();
        let calls = Calls::new().map_err(|source| {
            let what = "make descriptors for a session with";
            Error::from(ConnectError::System { what, address: server.name.clone(), source })
        })?;
        let established =
            connect::establish(&*domain, &server, (&config, time_max), client_id, None, &*clock)?;
        servers.on_welcome(&server, established.terms.welcome.cluster.as_ref());
        let mut core = Core::new(established.terms, Arc::clone(&domain), config.credits, clock.now());
        core.refined = Refined::new(config.refinement, core.terms.is_remote);
        let core = Driven::new(core, established.endpoint);
        let threads = Threads::new(may_start_threads);
        let shared = SharedSession::new(core, domain, servers, config, clock, threads, calls);
        let weak = Arc::downgrade(&shared);
        shared.closings.set_hasten(move |is_awaited| {
            if let Some(shared) = weak.upgrade() {
                shared.send_closes(is_awaited);
            }
        });
        shared.begin_eager_buffers();
        fork::watch(&shared);
        background::start(&shared);
        Ok(Self { owner: Arc::new(Owner { shared }) })
    }

    /// The id by which fences name this client.
    pub fn client_id(&self) -> [u8; 16] {
        self.owner.shared.config.client_id.unwrap_or_default()
    }

    /// The provider that carries the session.
    pub fn provider(&self) -> Provider {
        self.owner.shared.servers.current().provider
    }

    /// Says in words why that provider was taken.
    pub fn provider_reason(&self) -> String {
        self.owner.shared.servers.current().reason.clone()
    }

    /// The address of the server that has the session now, or had it last.
    pub fn address(&self) -> Address {
        self.owner.shared.servers.current().address.clone()
    }

    /// What was agreed with the server. Does not ask it.
    pub fn agreed(&self) -> Agreed {
        let core = self.owner.shared.lock();
        let (terms, welcome) = (&core.terms, &core.terms.welcome);
        Agreed {
            session: welcome.session,
            slots: welcome.slots,
            thresholds: welcome.thresholds,
            cuts_inline_writes: terms.cuts_inline_writes,
            gather: welcome.gather,
            read_inline_max: terms.read_inline_max,
            write_inline_max: terms.write_inline_max,
            transfer_size_max: welcome.transfer_size_max,
            handles_max: welcome.handles_max,
            keep_alive_ms: welcome.keep_alive_ms,
            lease_ms: welcome.lease_ms,
            registers_ordinary_memory: terms.registers_ordinary_memory,
            servers: welcome.cluster.iter().flat_map(|cluster| cluster.servers.clone()).collect(),
            term_ms: welcome.cluster.as_ref().map(|cluster| cluster.term_ms),
        }
    }

    /// Requests that may be outstanding now, by the credits the server granted.
    pub fn credits(&self) -> u16 {
        self.owner.shared.lock().session.credits().limit()
    }

    /// How often the session has reconnected.
    pub fn reconnects(&self) -> u64 {
        self.owner.shared.lock().reconnects
    }

    /// Whether it belongs to the parent of this process, so that every call fails with [`Error::Forked`]. Does not block.
    pub fn is_inherited(&self) -> bool {
        !self.owner.shared.home.is_here()
    }

    /// Whether there is a connection to the server, as far as this side knows.
    pub fn is_connected(&self) -> bool {
        self.owner.shared.lock().endpoint.is_some()
    }

    /// Whether the server announced that it shuts down.
    pub fn is_draining(&self) -> bool {
        self.owner.shared.lock().draining
    }

    /// What ordinary memory counts as in [`Session::decide`] if its registration is kept: where registering takes hold of pages it is as
    /// quick to reach as any registered memory, elsewhere it stays ordinary.
    pub fn kept_registration(&self) -> Registration {
        as_kept(self.owner.shared.domain.pins_pages())
    }

    /// How a transfer of `size` bytes would travel. [`Decision::explain`] says why. Does not ask the server.
    pub fn decide(
        &self,
        direction: Direction,
        size: u64,
        registration: Registration,
    ) -> (Decision, Circumstances) {
        let shared = &self.owner.shared;
        let question = Question::of(direction, size, registration);
        let mut core = shared.lock();
        let mut circumstances = core.circumstances(&shared.config, &question);
        core.refined.choose(&mut circumstances, false);
        (decide(&circumstances), circumstances)
    }

    /// Says in words how a transfer of `size` bytes would travel, and why. Does not ask the server.
    pub fn explain(&self, direction: Direction, size: u64, registration: Registration) -> String {
        let (decision, circumstances) = self.decide(direction, size, registration);
        let words = decision.explain(&circumstances);
        match self.owner.shared.lock().refined.known(&circumstances) {
            Some(known) => {
                let [inline_us, direct_us] = known.map(|ns| ns * size as f32 / 1000.0);
                format!("{words}; here it took {inline_us:.1} µs inline and {direct_us:.1} µs direct")
            }
            None => words,
        }
    }

    /// As [`Session::explain`], for memory in `segments` pieces ([`crate::Noncontiguous`]).
    pub fn explain_noncontiguous(
        &self,
        direction: Direction,
        size: u64,
        segments: usize,
        registration: Registration,
    ) -> String {
        let shared = &self.owner.shared;
        let core = shared.lock();
        let mut circumstances =
            core.circumstances(&shared.config, &Question::of(direction, size, registration));
        let method = shared.config.noncontiguous;
        let pieces = Pieces { count: segments, method, switches: core.terms.welcome.gather, learned: None };
        circumstances.form = Form::Pieces(pieces);
        let words = decide(&circumstances).explain(&circumstances);
        match core.learned.known(direction, registration, size, segments) {
            Some([pack, gather]) if method == Noncontiguous::Auto => {
                let quicker = if gather < pack { "gathering" } else { "packing" };
                let pack_us = pack * size as f32 / 1000.0;
                let gather_us = gather * size as f32 / 1000.0;
                format!(
                    "{words}; here it took {pack_us:.0} µs to pack such pieces and {gather_us:.0} µs to gather them: {quicker} is preferred"
                )
            }
            _ => words,
        }
    }

    /// Allocates and registers memory that the server reaches without copies. Zeroed. Does not block. Where the system lets no more
    /// memory be registered, it is ordinary memory: see [`RegisteredBuf::is_registered`].
    pub fn buffer(&self, len: usize) -> Result<RegisteredBuf> {
        Ok(RegisteredBuf::allocate_at_best(&self.owner.shared.domain, len)?)
    }

    /// Sends requests that are held back ([`Config::coalesce_submits`], [`Session::cork`]), and closes files that were dropped. Does not
    /// block.
    pub fn flush(&self) {
        let shared = &self.owner.shared;
        let mut core = shared.lock();
        core.collect_closes();
        shared.push(&mut core, false);
        let outcome = core.flush();
        shared.check(&mut core, outcome);
    }

    /// Holds submissions back: nonblocking operations that are submitted while the result lives leave together when it is dropped, in few
    /// system calls and few wake-ups of the server. They leave earlier where buffers are full or many bytes wait, and when a thread waits
    /// for an operation of the session, tests one ([`Pending::test`]), or calls [`Session::flush`]. Does not block.
    ///
    /// A program with many operations in flight collects all that have ended with [`crate::wait_some`], and submits what comes next
    /// under one cork.
    pub fn cork(&self) -> Cork<'_> {
        self.owner.shared.lock().corks += 1;
        Cork { owner: Arc::clone(&self.owner), life: PhantomData }
    }

    /// A round trip to the server: its duration. Blocks.
    pub fn ping(&self) -> Result<Duration> {
        let begin = Instant::now();
        self.probe()?;
        Ok(begin.elapsed())
    }

    /// An empty request and its reply: [`Session::ping`] for callers who need no time. Blocks.
    #[inline]
    pub fn probe(&self) -> Result<()> {
        self.owner.shared.run_null().map_or(Ok(()), done)
    }

    /// Nonblocking form of a round trip.
    pub fn submit_ping(&self) -> Pending<Result<()>> {
        self.call(Opcode::Null, done).submit(&self.owner)
    }

    forms! {
        /// Limits and thresholds in force now, asked of the server. Blocks.
        limits, submit_limits, limits_call, (&self) -> LimitsReply {
            Ok(self.call(Opcode::Limits, |op| decoded("limits", op)))
        }

        /// Publishes crossovers that were measured from end to end. From then on, the server exports them to new sessions over this
        /// transport that prove the same key, or without one come from the same network. Needs the right: a key of which the server's key
        /// file says `publish`, or without a key to be root or the server's user on its host. Blocks.
        publish, submit_publish, publish_call, (&self, crossovers: Crossovers) -> () {
            let named = Named { payload: encode_message_pack(&crossovers), ..Named::default() };
            Ok(Call::plain(None, Opcode::Publish, named, done))
        }

        /// Counters of the server. Blocks.
        statistics, submit_statistics, statistics_call, (&self) -> Statistics {
            Ok(self.call(Opcode::Statistics, |op| decoded("statistics", op)))
        }

        /// Names of the exports that this client may mount. Blocks.
        exports, submit_exports, exports_call, (&self) -> Vec<String> {
            Ok(self.call(Opcode::Exports, |op| decoded("exports", op)))
        }

        /// Opens an export. Blocks.
        mount, submit_mount, mount_call, (&self, export: &str) -> Export {
            check_name(export.as_bytes(), "export name")?;
            let named = Named::default().about(export.as_bytes().to_vec());
            let named = Named { reopen: Some(Reopen::Mount), ..named };
            let (owner, export) = (Arc::clone(&self.owner), export.to_owned());
            Ok(Call::boxed(None, Opcode::Mount, named, move |op| {
                let key = owner.shared.config.key.as_ref();
                let reply = op.into_reply().map_err(|error| error.with_key(key.map(|key| &*key.name)))?;
                let mounted: MountReply = decode_message_pack("mount reply", &reply.payload)?;
                Ok(Export::new(Dir::new(owner, reply.into_node()?), export, mounted))
            }))
        }
    }

    fn call<T>(&self, opcode: Opcode, finish: fn(Op) -> T) -> Call<T> {
        Call::plain(None, opcode, Named::default(), finish)
    }

    /// Ends the session. Operations in flight end with [`Error::Closed`], and so does every later call. Dropping the last handle does the
    /// same. Blocks while requests are in flight, until the server has heard of the end, for a second at most.
    pub fn close(&self) {
        let shared = &self.owner.shared;
        if !shared.home.is_here() {
            return;
        }
        shared.stop();
        let mut core = shared.lock();
        shared.end(&mut core);
        shared.tell(&core);
    }
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Session({})", self.owner.shared.servers.name())
    }
}
