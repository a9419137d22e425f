//! The command line with its defaults filled in: what a benchmark is to run.

use std::time::{Duration, Instant};

use serde::Serialize;

use crate::cli::{Benchmark, Mount, Options, Peer, Poll, Registered, Transport};
use crate::load::{Budget, DIRECT_BYTES, Pattern};
use crate::record::{Method, Op};

/// What is run. Lists are never empty, but for transports and peers.
#[derive(Debug, Clone, Serialize)]
pub struct Plan {
    /// The benchmark's name, as on the command line.
    #[serde(skip)]
    pub benchmark: &'static str,
    /// Transports of dafs.
    pub transports: Vec<Transport>,
    /// Other systems.
    pub peers: Vec<Peer>,
    /// Mounted file systems.
    pub mounts: Vec<Mount>,
    /// Directions.
    pub ops: Vec<Op>,
    /// Bytes of one operation.
    pub sizes: Vec<usize>,
    /// Operations in flight.
    pub queue_depths: Vec<usize>,
    /// How data travels.
    pub methods: Vec<Method>,
    /// Registered memory, ordinary memory, or one after the other.
    pub registered: Vec<bool>,
    /// Order of offsets.
    pub pattern: Pattern,
    /// How the ends wait, where it was asked for.
    pub poll: Option<Poll>,
    /// Whether the servers measured are of this program's own making.
    #[serde(skip)]
    pub own_server: bool,
    /// Whether both ends share a CPU.
    pub same_cpu: bool,
    /// Whether the server bypasses the page cache.
    pub direct_io: bool,
    /// The file is put out of the page cache before each operation.
    pub cold: bool,
    /// The server says how it moved a list of each row, for `sieve`.
    #[serde(skip)]
    pub explain: bool,
    /// Pieces of one operation, for `noncontiguous` and `listio`.
    pub segments: usize,
    /// Sessions held open, for `idle`.
    #[serde(skip)]
    pub sessions: usize,
    /// Rounds.
    pub repeats: u32,
    /// Rounds are added while medians are not known.
    #[serde(skip)]
    pub settles: bool,
    /// What is repeated beyond them, for `crossover`, is repeated before this.
    #[serde(skip)]
    pub until: Option<Instant>,
    /// Directories that the benchmark runs on, one after the other, from this one on.
    #[serde(skip)]
    pub directories: usize,
    /// Length of one measurement.
    #[serde(rename = "seconds", serialize_with = "seconds")]
    pub budget: Budget,
}

impl Plan {
    /// The plan for `benchmark`.
    pub fn of(benchmark: &Benchmark) -> Self {
        use Method::{Auto, Direct, Inline};
        const KIB: usize = 1 << 10;
        let (name, options, defaults) = match benchmark {
            Benchmark::Latency(options) => (
                "latency",
                options,
                Defaults { sizes: vec![4, 4 * KIB, 64 * KIB, 1024 * KIB], ..Defaults::default() },
            ),
            Benchmark::Bandwidth(options) => (
                "bandwidth",
                options,
                Defaults {
                    sizes: vec![1024 * KIB],
                    depths: vec![16],
                    registered: Registered::Yes,
                    ..Defaults::default()
                },
            ),
            Benchmark::Iops(options) => (
                "iops",
                options,
                Defaults {
                    sizes: vec![4 * KIB],
                    depths: vec![1, 16, 64],
                    ops: vec![Op::Read],
                    registered: Registered::Yes,
                    pattern: Pattern::Random,
                    ..Defaults::default()
                },
            ),
            Benchmark::Crossover { options, .. } => {
                let sizes = (8..=20).map(|log2| 1 << log2).collect();
                (
                    "crossover",
                    options,
                    Defaults {
                        sizes,
                        methods: vec![Inline, Direct, Auto],
                        repeats: 3,
                        seconds: 0.02,
                        ..Defaults::default()
                    },
                )
            }
            Benchmark::Compare { options, .. } => (
                "compare",
                options,
                Defaults { sizes: vec![4 * KIB], registered: Registered::Yes, ..Defaults::default() },
            ),
            Benchmark::Overlap(options) => (
                "overlap",
                options,
                Defaults {
                    transports: vec![Transport::Shm],
                    sizes: vec![64 * KIB],
                    registered: Registered::Yes,
                    ..Defaults::default()
                },
            ),
            Benchmark::Noncontiguous(options) | Benchmark::Listio(options) => {
                let sizes = [128, 512, KIB, 2 * KIB, 4 * KIB, 8 * KIB, 16 * KIB].to_vec();
                let scattered = matches!(benchmark, Benchmark::Listio(_));
                let name = if scattered { "listio" } else { "noncontiguous" };
                (name, options, Defaults { sizes, methods: Vec::new(), ..Defaults::default() })
            }
            Benchmark::Mixed(options) => (
                "mixed",
                options,
                Defaults {
                    transports: vec![Transport::Shm],
                    sizes: vec![4 * KIB],
                    depths: vec![16],
                    ops: vec![Op::Read],
                    registered: Registered::Yes,
                    pattern: Pattern::Random,
                    ..Defaults::default()
                },
            ),
            Benchmark::Idle { options, .. } => {
                ("idle", options, Defaults { sizes: vec![0], ..Defaults::default() })
            }
            Benchmark::Sieve { options, .. } => {
                let sizes = vec![128, KIB, 4 * KIB];
                let (transports, registered) = (vec![Transport::Shm], Registered::Yes);
                ("sieve", options, Defaults { transports, sizes, registered, ..Defaults::default() })
            }
            Benchmark::C { options, .. } => {
                let transports = vec![Transport::Shm];
                ("c", options, Defaults { transports, sizes: vec![4, 4 * KIB], ..Defaults::default() })
            }
            Benchmark::Locks(options) => {
                ("locks", options, Defaults { sizes: vec![4 * KIB], ..Defaults::default() })
            }
            Benchmark::Metadata(options) => {
                ("metadata", options, Defaults { depths: vec![1, 16, 64], ..Defaults::default() })
            }
            Benchmark::Registration(options) => (
                "registration",
                options,
                Defaults { sizes: vec![64 * KIB], ops: vec![Op::Write], ..Defaults::default() },
            ),
            Benchmark::Pipeline { options, .. } => (
                "pipeline",
                options,
                Defaults { sizes: vec![16 * 1024 * KIB], depths: vec![1, 4], ..Defaults::default() },
            ),
            Benchmark::Fairness { options, .. } => (
                "fairness",
                options,
                Defaults {
                    sizes: vec![4 * KIB],
                    ops: vec![Op::Read],
                    registered: Registered::Yes,
                    pattern: Pattern::Random,
                    ..Defaults::default()
                },
            ),
            Benchmark::Mpi { options, .. } => (
                "mpi",
                options,
                Defaults {
                    sizes: vec![4, 64, KIB, 4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, 1024 * KIB],
                    repeats: 3,
                    seconds: 0.02,
                    ..Defaults::default()
                },
            ),
            Benchmark::Views { options, .. } => {
                ("views", options, Defaults { repeats: 3, seconds: 0.02, ..Defaults::default() })
            }
            Benchmark::Stripe { options, .. } => {
                let transports = vec![Transport::Tcp];
                ("stripe", options, Defaults { transports, seconds: 0.3, ..Defaults::default() })
            }
            Benchmark::Distance { options, .. } => {
                let transports = vec![Transport::Tcp];
                ("distance", options, Defaults { transports, repeats: 3, ..Defaults::default() })
            }
            Benchmark::Scale { options, .. } => {
                ("scale", options, Defaults { seconds: 0.5, ..Defaults::default() })
            }
            Benchmark::Cluster { options, .. } => {
                let transports = vec![Transport::Tcp];
                (
                    "cluster",
                    options,
                    Defaults { transports, repeats: 11, seconds: 0.3, ..Defaults::default() },
                )
            }
            Benchmark::Limits(options) => (
                "limits",
                options,
                Defaults {
                    sizes: vec![4, 4 * KIB, 64 * KIB, 1024 * KIB],
                    depths: vec![16],
                    ..Defaults::default()
                },
            ),
        };
        let mut plan = Self::fill(name, options, defaults);
        if let Benchmark::Idle { sessions, .. } = benchmark {
            plan.sessions = *sessions;
            plan.budget.duration = plan.budget.duration.max(IDLE_MIN);
        }
        if plan.direct_io {
            plan.sizes.retain(|bytes| bytes.is_multiple_of(DIRECT_BYTES));
        }
        plan.explain = matches!(benchmark, Benchmark::Sieve { explain: true, .. });
        plan
    }

    fn fill(benchmark: &'static str, options: &Options, defaults: Defaults) -> Self {
        let options = options.clone();
        Self {
            benchmark,
            transports: transports(&options, defaults.transports),
            peers: options.peer,
            mounts: options.peer_mount,
            ops: options.op.unwrap_or(defaults.ops),
            sizes: ascending(options.sizes.unwrap_or(defaults.sizes)),
            queue_depths: ascending(options.queue_depth.unwrap_or(defaults.depths)),
            methods: options.method.filter(|methods| !methods.is_empty()).unwrap_or(defaults.methods),
            registered: options.registered.unwrap_or(defaults.registered).values(),
            pattern: options.pattern.unwrap_or(defaults.pattern),
            poll: options.poll,
            own_server: options.server.is_none(),
            same_cpu: false,
            direct_io: options.direct_io,
            cold: options.cold,
            explain: false,
            segments: options.segments.unwrap_or(SEGMENTS),
            sessions: 1,
            repeats: options.repeats.unwrap_or(defaults.repeats),
            // Who says how many gets as many, and crossover adds its own.
            settles: options.repeats.is_none() && benchmark != "crossover",
            until: None,
            directories: 1,
            budget: Budget {
                duration: Duration::from_secs_f64(options.seconds.unwrap_or(defaults.seconds)),
                ops_min: 20,
                ops_slow_min: 5,
            },
        }
    }

    /// Whether anything of it runs on an RDMA device.
    pub fn needs_rdma_device(&self) -> bool {
        self.transports.contains(&Transport::Verbs) || self.peers.contains(&Peer::Perftest)
    }

    /// What the page cache has of the file, as rows say it.
    pub fn cache(&self) -> &'static str {
        match (self.cold, self.direct_io) {
            (true, _) => "cold",
            (false, true) => "direct",
            (false, false) => "warm",
        }
    }

    /// The polling policies for `transport`: what was asked for, else adaptive.
    pub fn poll(&self) -> Poll {
        self.poll.unwrap_or(Poll::Adaptive)
    }
}

fn seconds<S: serde::Serializer>(budget: &Budget, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(budget.duration.as_secs_f64())
}

/// A server that runs already is reached in one way only.
fn transports(options: &Options, default: Vec<Transport>) -> Vec<Transport> {
    match &options.server {
        _ if options.peer_only => Vec::new(),
        Some(address) if address.starts_with("dafs+shm:") => vec![Transport::Shm],
        Some(address) if address.starts_with("dafs+verbs:") => vec![Transport::Verbs],
        Some(_) => vec![Transport::Tcp],
        None => options.transport.clone().unwrap_or(default),
    }
}

/// Pieces of one operation.
const SEGMENTS: usize = 128;

/// A shorter look at an idle process sees little more than its own start.
const IDLE_MIN: Duration = Duration::from_secs(1);

/// Each once: where a curve crosses another is looked for between neighbours.
fn ascending(mut values: Vec<usize>) -> Vec<usize> {
    values.sort_unstable();
    values.dedup();
    values
}

struct Defaults {
    transports: Vec<Transport>,
    ops: Vec<Op>,
    sizes: Vec<usize>,
    depths: Vec<usize>,
    methods: Vec<Method>,
    registered: Registered,
    pattern: Pattern,
    repeats: u32,
    seconds: f64,
}

impl Default for Defaults {
    fn default() -> Self {
        Self {
            transports: vec![Transport::Tcp, Transport::Shm],
            ops: vec![Op::Read, Op::Write],
            sizes: Vec::new(),
            depths: vec![1],
            methods: vec![Method::Auto],
            registered: Registered::Both,
            pattern: Pattern::Sequential,
            repeats: 5,
            seconds: 0.1,
        }
    }
}
