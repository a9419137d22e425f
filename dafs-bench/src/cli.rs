//! The command line: flags, and how they are explained.

mod cluster;
mod distance;
mod mount;
mod mpi;
mod pipeline;
mod scale;
mod stripe;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use serde::Serialize;

use crate::load::Pattern;
use crate::machine::Pin;
use crate::record::{Method, Op};

pub use cluster::ClusterOptions;
pub use distance::DistanceOptions;
pub use mount::Mount;
pub use mpi::{Class, MpiCase, MpiOptions, ViewsOptions, Way};
pub use pipeline::PipelineOptions;
pub use scale::ScaleOptions;
pub use stripe::StripeOptions;

/// Measure dafs beside the raw limit of this machine, and beside other systems.
///
/// Each row names its limit and the ratio to it. The limit is the simplest program that does the same work: a ring in shared memory, a TCP
/// request and response, a local pread. The ratio is dafs over the limit for times, and the limit over dafs for rates. At 1.0 dafs equals
/// the limit; smaller is better, and below 1.0 dafs is faster. Limit and subject alternate in each round of a run. The ratio is the median
/// over the rounds, so a machine that is busy for a while spoils one round, not the result.
///
/// Each run starts a dafs-server on a temporary directory in memory, and stops it at the end. latency, bandwidth, iops, crossover and
/// metadata also run on a temporary directory on a disk, if there is one, unless --dir names a directory.
#[derive(Debug, Parser)]
#[command(name = "dafs-bench", version, after_help = EXAMPLES)]
pub struct Cli {
    /// Benchmark.
    #[command(subcommand)]
    pub benchmark: Benchmark,
}

const EXAMPLES: &str = "\
Examples:
  dafs-bench latency --transport tcp,shm --sizes 4,4KiB,64KiB,1MiB --json latency.json
  dafs-bench bandwidth --transport tcp,shm --queue-depth 16 --peer nfs
  dafs-bench iops --transport shm --queue-depth 1,16,64
  dafs-bench crossover --transport tcp,shm --plot crossover.svg
  dafs-bench overlap --transport shm --plot overlap.svg
  dafs-bench compare --html compare.html             # beside NFS, sockets and local files: a report
  dafs-bench noncontiguous --segments 128 --plot noncontiguous.svg
  dafs-bench mixed --transport shm --dir /var/tmp    # does a client that reads the disk slow down one that reads the cache?
  dafs-bench idle --sessions 1000                    # CPU and memory of sessions that do nothing
  dafs-bench latency --transport verbs --sizes 4,1MiB --peer perftest
  dafs-bench registration --plot registration.svg    # pin-down cache, batched deregistration, groups
  dafs-bench pipeline --dir /var/tmp --plot pipeline.svg     # do disk and network overlap?
  dafs-bench fairness --transport tcp,shm            # small reads beside a thousand large ones
  dafs-bench fairness --transport tcp --sessions 1000  # does everyone get a share?
  dafs-bench mpi --plot mpi.svg                      # MPI-IO: what the papers ran, beside the local file system
  dafs-bench mpi --case memory --transport shm --way ompio
  dafs-bench views --plot views.svg                  # views, lists and sieving, beside the papers' figures and tables
  dafs-bench stripe --plot stripe.svg                # files over 1 to 4 servers, as root
  dafs-bench metadata --plot metadata.svg            # create, open, stat, rename, list and remove files
  dafs-bench metadata --peer-only --peer mount-shm,mount-tcp,fuse,nfs  # the same by programs that use a mount
  dafs-bench distance --plot distance.svg            # trees over a line of some milliseconds
  dafs-bench scale --plot scale.svg                  # servers with one worker and with several
  dafs-bench limits                                  # the raw limits alone, no server

Use a quiet machine; the JSON has the load average.
For the options see: dafs-bench latency --help";

/// The benchmarks.
#[derive(Debug, Subcommand)]
pub enum Benchmark {
    /// Measure the time of single operations, by size.
    ///
    /// There are rows for reads and writes, with registered and with ordinary memory, and for an empty request. Over tcp each row
    /// appears twice unless --poll is given: waiting in the kernel (limit tcp_rr), and spinning (tcp_rr_spin).
    Latency(Options),
    /// Measure the rate of large transfers, many in flight.
    ///
    /// Defaults: 1 MiB, queue depth 16, registered memory.
    Bandwidth(Options),
    /// Measure the rate of small operations, by queue depth.
    ///
    /// Defaults: 4 KiB reads in random order at queue depths 1, 16 and 64, registered memory. Over tcp, the limit is a
    /// server with one receive and one send for each request. dafs sends several replies together, so the ratio may be well below 1.
    Iops(Options),
    /// Compare inline and direct transfers, by size, direction and registration.
    ///
    /// The table shows between which sizes direct becomes faster, beside the threshold that the server exported. Each size is measured
    /// --repeats times. Sizes near the crossing are then repeated until it is certain or --time is over. A size counts as a win where the
    /// methods differ by more than the spread of their rounds.
    Crossover {
        /// Repeat sizes near the crossings for as long as the run has not taken this many seconds, 0 to 86400.
        #[arg(long, default_value_t = 110.0, value_parser = parse_time, value_name = "SECONDS")]
        time: f64,
        /// Have --server export the crossings that were found, also to later sessions.
        ///
        /// They are for all clients that prove the same key (--key-file) over the same transport. The server's key file must give the
        /// key the right `publish`. Without a key, they are for clients of the same network, and only root and the server's user on its
        /// host may publish them.
        #[arg(long, requires = "server")]
        publish: bool,
        /// The options of all benchmarks.
        #[command(flatten)]
        options: Options,
    },
    /// Compare dafs with the local file system, NFS and plain sockets, and write a report.
    ///
    /// Measures the time of single reads and writes, the rate of large and of small ones, calls on names, overlap with computation, and the
    /// CPU of the client. Transports of dafs: --transport. NFS is libnfs with NFS-Ganesha, which are started and stopped, as root (Debian:
    /// nfs-ganesha nfs-ganesha-vfs libnfs13); --peer-mount adds a mounted file system. All take turns, in rounds, until the medians are
    /// known to 5 % or --time is over. The report is one HTML file, with figures, tables, the machine, and what the papers found.
    Compare {
        /// Measure for this many seconds, 1 to 86400; each case is measured three times in any case.
        #[arg(long, default_value_t = 240.0, value_parser = parse_time, value_name = "SECONDS")]
        time: f64,
        /// Write the report to this file.
        #[arg(long, default_value = "dafs-compare.html", value_name = "FILE")]
        html: PathBuf,
        /// The options of all benchmarks.
        #[command(flatten)]
        options: Options,
    },
    /// Measure bandwidth while the client computes between submission and completion.
    ///
    /// The horizontal axis is the CPU fraction T/(T + Tio), where T is the computation added to each operation and
    /// Tio the time of the operation without it. One operation is in flight. Perfect overlap keeps the bandwidth up to a fraction of 0.5.
    /// Each row stands beside the slower of transfer and computation, each measured alone in the same rounds.
    Overlap(Options),
    /// Move memory in pieces to and from a contiguous range of the file, by each method.
    ///
    /// There are rows for multiple (a request for each piece), pack (the client copies), gather (RDMA of each piece) and auto
    /// (pack or gather, by the sizes that the server exports). Each stands beside one contiguous transfer of as many bytes.
    /// --sizes are sizes of one piece.
    #[command(alias = "transfer")]
    Noncontiguous(Options),
    /// Move file and memory in pieces, by each method, beside local calls on the file.
    ///
    /// Like noncontiguous, with gaps in the file as large as the pieces. The limit for reads is the fastest of: a pread for each piece, one
    /// pread of everything with copies, all pieces at once by io_uring. The limit for writes is a pwrite for each piece. With --cold the
    /// file is not in the page cache.
    Listio(Options),
    /// Measure cached reads of one client while another reads from the disk.
    ///
    /// One server exports a directory in memory, and one on a disk that bypasses the page cache (O_DIRECT): --dir, or the directory for
    /// temporary files, or else /var/tmp, whichever is on a disk. Rows: 4 KiB reads from the disk at queue depth 16, alone, beside a
    /// loop of local preads; cached reads alone; and each of the two while the other runs, beside its own figure alone (limit `alone`). A
    /// ratio of 1.25 then means 0.8 of the rate. Both clients share a CPU, unless --pin none.
    Mixed(Options),
    /// Measure the CPU and memory that an idle server and idle sessions take.
    ///
    /// One row is for the server and one for the client. Each measures --seconds (at least 1) without requests.
    Idle {
        /// Hold this many sessions open, 1 to 10000.
        #[arg(long, default_value_t = 100, value_parser = parse_sessions, value_name = "COUNT")]
        sessions: usize,
        /// The options of all benchmarks.
        #[command(flatten)]
        options: Options,
    },
    /// Measure the cost of registering memory, and what keeping and grouping registrations save.
    ///
    /// Cases `rows-…` write 1,024 rows of 4 KiB of one array in one operation: registered before, one by one, in a group, and in a group
    /// with ten unmapped holes. Cases `none`, `cache` and `batch` write from 1,000 buffers with an LRU cache of 100 registrations; a column
    /// has the hit ratio. `none` keeps nothing, `cache` evicts one at a time, `batch` sixteen together. `hit` is the cost of a look-up,
    /// `miss` what a miss adds to a registration.
    Registration(Options),
    /// Measure lists of small pieces of a file, with and without the gaps between them (sieving).
    ///
    /// Methods `auto`, `on` and `off` send one list of --segments pieces, which the server sieves where that is faster, always, or never.
    /// `view` moves the same pieces by a view, as `auto`. The other methods are local programs: a call for each piece (`separate`), one for
    /// all (`vectored`: reads, and writes without gaps), a window and copies (`sieved`), all at once (`io_uring`). Rows vary the size of a
    /// piece (--sizes) and how many bytes of 1 to 64 are wanted. The memory is registered, unless --registered says otherwise. The ratio
    /// is to the fastest local program. --cold drops the file from the page cache before each list. --direct-io bypasses the page cache,
    /// in local programs too. --dir names the disk.
    Sieve {
        /// Below the table, show the file system calls that the server made for one list of each row, and the times that it expected.
        #[arg(long)]
        explain: bool,
        /// The options of all benchmarks.
        #[command(flatten)]
        options: Options,
    },
    /// Measure what byte-range locks cost.
    ///
    /// Case `uncontended`: lock and unlock, beside two empty requests. Case `chain`: lock, write of 4 KiB and unlock in one round trip,
    /// beside the write alone. Case `contended`: two sessions pass one lock back and forth, on any CPUs, beside two empty requests of a
    /// pinned session. Case `held`: lock and unlock while another session holds `held` ranges of the file.
    Locks(Options),
    /// Measure what the C interface costs.
    ///
    /// Reads and writes of --sizes [default: 4 bytes and 4 KiB] of ordinary memory, one after the other, by a session of libdafs (case `c`)
    /// and by one of the client's library (`rust`), both with their defaults, in turn. The ratio is that of their times in each round.
    /// libdafs is loaded as a program loads it: `cargo xtask c install --prefix DIR` puts it into DIR/lib. Over shm alone.
    C {
        /// The shared library.
        #[arg(long, default_value = "libdafs.so.0", value_name = "PATH")]
        library: PathBuf,
        /// The options of all benchmarks.
        #[command(flatten)]
        options: Options,
    },
    /// Measure how far disk and network work at the same time, for one large file.
    ///
    /// Each case moves a file of --file-size and bypasses the page cache (O_DIRECT). Operations have the size of --sizes, and
    /// --queue-depth of them are in flight. The server cuts them into chunks of --chunk-sizes and keeps --depths of them in progress; 1
    /// is one after the other. Rows: the disk alone (four threads of local O_DIRECT), the network alone (the same transfer of a file in
    /// memory), and both. The ratio of both is their time over that of the slower one alone. --dir is the disk [default: as for mixed].
    Pipeline {
        /// What to vary.
        #[command(flatten)]
        pipeline: PipelineOptions,
        /// The options of all benchmarks.
        #[command(flatten)]
        options: Options,
    },
    /// Measure small reads of one client while another has many large ones in flight.
    ///
    /// Rows: reads of --sizes [default: 4 KiB], one after the other, alone; and while another client keeps --outstanding reads of 1 MiB of
    /// the same file in flight, beside their own time alone: a ratio of 3 is three times the latency. There are rows for a file in the
    /// page cache, and for one on a disk (--dir), whose reads bypass the cache. MiB/s is what the other client gets meanwhile. Both
    /// clients share a CPU, unless --pin none.
    ///
    /// With --sessions, that many sessions run at once, each with four reads in flight. Rows: the rate of all of them together, and the
    /// rate of the slowest session beside an equal share. A ratio of 2 is half of its fair share.
    Fairness {
        /// Run this many sessions at once instead of the two clients, 1 to 10000.
        #[arg(long, value_parser = parse_sessions, value_name = "COUNT")]
        sessions: Option<usize>,
        /// Keep this many large reads in flight, 1 to 1024.
        #[arg(
            long,
            default_value_t = 1000,
            conflicts_with = "sessions",
            value_parser = clap::value_parser!(u32).range(1..=1024),
            value_name = "COUNT"
        )]
        outstanding: u32,
        /// The options of all benchmarks.
        #[command(flatten)]
        options: Options,
    },
    /// Measure MPI-IO as the papers did: MPI programs under mpirun.
    ///
    /// Needs Open MPI 4.1, and the driver in --mpi-prefix: `cargo xtask mpi install --prefix DIR` puts it there. The programs are
    /// compiled at the start. They run on dafs by OMPIO and by ROMIO, without dafs on the same directory (transport `local`), and on
    /// every --peer-mount. Subjects alternate, round by round. A run takes a few minutes.
    ///
    /// One process, transfers of --sizes: `memory` compares memory modes. Its column `reuse` is the share of transfers that use the
    /// same buffer; each of the others uses a buffer that is no longer registered. `latency` and `bandwidth` go by size.
    /// `overlap` adds computation. Way `client` is the client API without MPI: mode `none` is memory of the library, which is
    /// registered when it is made; `pinned` is ordinary memory that was registered before. Means leave out the slowest 1 %.
    ///
    /// --ranks processes: `block-column`, `tiled`, `mesh` and `btio` write an array into one file, and read it. In `mesh` the integers of
    /// the processes are interleaved. Modes are methods: `multiple` (a request for each piece), `sieve` (client data sieving), `list`,
    /// `list_ads` (lists that the server sieves), `view` (a view in the server), `ecio` (views of all processes, which the server moves
    /// together), and `two_phase` (collective). Column `requests` is what the server answered, `paper` what the paper counted. A size is
    /// that of a piece, MiB/s that of all processes together.
    ///
    /// Limits: `client` and `none`, the client API, beside MPI programs on dafs; `perfect` overlap; `local`, the quickest program
    /// without dafs, beside methods; pread and pwrite beside the rest. Notes say which targets are met.
    Mpi {
        /// What to measure.
        #[command(flatten)]
        mpi: MpiOptions,
        /// The options of all benchmarks.
        #[command(flatten)]
        options: Options,
    },
    /// Draw the figures and tables of the papers about views, lists and sieving.
    ///
    /// Runs cases of `mpi`, with its methods, on the axes of the papers: `block-column` and `tiled` of 4 processes (PVFS over InfiniBand,
    /// Figures 6 to 9), `mesh` of 2 and 4 (ECIO, Tables 1 to 4). Writes are measured without and with MPI_File_sync. With --cold, reads are
    /// also measured with the file out of the page cache (`cache` is then cold), except on mounts, whose servers have caches of their own.
    /// --dir names the disk. A note on each figure and table says which side is faster from which size, whether that is as in the paper,
    /// and otherwise each side's time for one piece. Durable writes are judged on a disk only.
    Views {
        /// What to measure.
        #[command(flatten)]
        views: ViewsOptions,
        /// The options of all benchmarks.
        #[command(flatten)]
        options: Options,
    },
    /// Measure files that lie over several servers.
    ///
    /// Each server has a network namespace of its own and a link that is held to --link-rate, so this needs root (or `unshare --user
    /// --map-root-user`), and ip and tc (Debian: iproute2). Case `contiguous`: each client moves its own region of 2 MiB for each server,
    /// again and again ("PVFS over InfiniBand", Figures 5 and 7). Cases `tile-multiple` and `tile-list`: four clients move the tiles of a
    /// picture of 72 MiB, row by row or as one list (Figure 9). Clients are threads with sessions of their own. The limit is one bare
    /// socket over the link of each server, all at once. CPU % is that of one client.
    Stripe {
        /// What to vary.
        #[command(flatten)]
        stripe: StripeOptions,
        /// The options of all benchmarks.
        #[command(flatten)]
        options: Options,
    },
    /// Measure calls on names: files are created, opened, looked at, renamed, listed and removed.
    ///
    /// Each round makes 1,024 empty files in a directory, and does one thing to all of them after the other: `create` makes each
    /// (O_EXCL), opens and closes it, `open` opens it to read and closes it, `stat` reads its attributes, `rename` gives it another name
    /// in the directory, `list` reads the directory with attributes (an operation is an entry; several listings run at once), `remove`
    /// removes it. --queue-depth [default: 1,16,64] is how many requests are in flight. The limit is a local program on the same file
    /// system, call by call. --dir names the file system; without it there are rows for memory and for a disk. Peers are measured one call
    /// at a time. For mounts beside a bare FUSE program and NFS: --peer-only --peer mount-shm,mount-tcp,fuse,nfs, and --peer-mount for
    /// what is mounted already.
    Metadata(Options),
    /// Measure trees over a long line.
    ///
    /// The command `dafs` copies a tree to a server (`copy-to`), lists it (`list`), copies it back (`copy-from`) and removes it (`remove`),
    /// through a relay that holds every byte back for half of --round-trip-ms. Operations are files and directories. The limit is a line
    /// that is always full, with 64 requests on the way: one for each file and directory, and a round trip for each level of the tree. What
    /// comes back is compared with what was sent.
    Distance {
        /// What to vary.
        #[command(flatten)]
        distance: DistanceOptions,
        /// The options of all benchmarks.
        #[command(flatten)]
        options: Options,
    },
    /// Measure what more workers of a server give.
    ///
    /// Four clients that sleep, one request each, on servers with one worker and with several, in alternation: lists of 4,096 extents that
    /// are cached (`list`), views of as many (`view`), 4 KiB reads (`sleepers`), one lock that all want (`hot lock`), 4 KiB writes to one
    /// file (`hot file`). The limit are as many local threads that do the same by calls of the kernel. With c and s the CPU time that an
    /// operation takes at the client and at one worker, n workers on n CPUs can give n / (1 + c/s) times as much as that one (`can give`),
    /// and at least as much.
    Scale {
        /// What to vary.
        #[command(flatten)]
        scale: ScaleOptions,
        /// The options of all benchmarks.
        #[command(flatten)]
        options: Options,
    },
    /// Measure what it costs that a server is of a cluster.
    ///
    /// One client, one call at a time, to a server alone and to one of a cluster with one server, in alternation: 4 KiB reads, writes and
    /// appends, opens that make a file, creates (the file must be new), renames, removals, and a lock with its end. Those that the
    /// cluster's store must know of wait for it.
    Cluster {
        /// What it needs.
        #[command(flatten)]
        cluster: ClusterOptions,
        /// The options of all benchmarks.
        #[command(flatten)]
        options: Options,
    },
    /// Measure the raw limits alone; no server is started.
    Limits(Options),
}

/// Options of all benchmarks. An option that has no effect is refused.
#[derive(Debug, Clone, Args)]
pub struct Options {
    /// Measure these transports, separated by commas [default: tcp,shm; shm for overlap, mixed and sieve].
    #[arg(long, value_delimiter = ',', value_name = "LIST")]
    pub transport: Option<Vec<Transport>>,
    /// Size of an operation, 1 byte to 16MiB, separated by commas, such as 4,64KiB [default: by benchmark].
    #[arg(long, value_delimiter = ',', value_parser = parse_size, value_name = "LIST")]
    pub sizes: Option<Vec<usize>>,
    /// Keep this many operations in flight, 1 to 1024, separated by commas [default: by benchmark].
    #[arg(long, value_delimiter = ',', value_parser = parse_depth, value_name = "LIST")]
    pub queue_depth: Option<Vec<usize>>,
    /// Pieces of an operation, 1 to 65536, for noncontiguous, listio and sieve [default: 128].
    #[arg(long, value_parser = parse_segments, value_name = "COUNT")]
    pub segments: Option<usize>,
    /// Measure these directions, separated by commas [default: both].
    #[arg(long, value_delimiter = ',', value_name = "LIST")]
    pub op: Option<Vec<Op>>,
    /// Move data by these methods, a row each, separated by commas.
    ///
    /// `auto` lets the client choose by the server's thresholds. `eager`, `client-initiated` and `hybrid` need buffers that the server
    /// lends; if it lends none, they are the same as `direct`.
    #[arg(long, value_delimiter = ',', value_name = "LIST")]
    pub method: Option<Vec<Method>>,
    /// Use registered memory, ordinary memory, or both [default: by benchmark].
    #[arg(long, value_name = "WHICH")]
    pub registered: Option<Registered>,
    /// Order of offsets in the file of 64 MiB [default: sequential; random for iops, mixed and fairness].
    #[arg(long)]
    pub pattern: Option<Pattern>,
    /// Policy for waiting, at both ends [default: adaptive over shm; event and busy for latency over tcp, else adaptive].
    #[arg(long)]
    pub poll: Option<Poll>,
    /// Repeat this many rounds, 1 to 1000, and take the median [default: 5; 3 for crossover, mpi and views].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1000), value_name = "COUNT")]
    pub repeats: Option<u32>,
    /// Measure for this many seconds in each round, 0.001 to 3600 [default: 0.1; 0.02 for crossover, mpi and views; 0.3 for stripe].
    #[arg(long, value_parser = parse_seconds, value_name = "SECONDS")]
    pub seconds: Option<f64>,
    /// Also measure these other systems, if they are installed.
    #[arg(long, value_delimiter = ',', value_name = "LIST")]
    pub peer: Vec<Peer>,
    /// Also measure a mounted file system with O_DIRECT, such as nfs-rdma=/mnt/nfs.
    ///
    /// Its rows have that name. The files `dafs-bench.data` and, for mpi and views, `dafs-bench.array` in the directory are written to and
    /// removed. NFS writes with O_DIRECT are durable; those of dafs are not. MPI programs (mpi, views) use the mount's page
    /// cache.
    #[arg(long, value_name = "NAME=DIR", value_delimiter = ',', value_parser = mount::parse)]
    pub peer_mount: Vec<Mount>,
    /// Measure only the peers, not dafs.
    #[arg(long)]
    pub peer_only: bool,
    /// Run the two ends on these CPUs.
    #[arg(long, value_enum, default_value_t = Pin::Auto)]
    pub pin: Pin,
    /// IP address of the RDMA device for --transport verbs [default: the first device that has one].
    #[arg(long, value_name = "IP", env = "DAFS_VERBS_ADDRESS")]
    pub verbs_address: Option<std::net::IpAddr>,
    /// Put the file of the benchmark into this directory [default: /dev/shm, memory].
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Drop the file from the page cache before each read (listio, views) or list (sieve); needs a --dir on disk.
    #[arg(long, conflicts_with = "direct_io")]
    pub cold: bool,
    /// Bypass the page cache (O_DIRECT), in the server and in the limits; needs a --dir on disk.
    ///
    /// For latency, bandwidth, iops, crossover, overlap, noncontiguous, sieve and limits. mixed, pipeline and fairness always do that for
    /// the disk. Sizes must be multiples of 4 KiB; other default sizes are skipped.
    #[arg(long)]
    pub direct_io: bool,
    /// Use a running server instead of starting one, such as dafs+tcp://10.0.0.7:41731/data.
    ///
    /// The export must be writable. The file `dafs-bench.data` in its root is written to, and remains. The raw limits
    /// are still those of this machine.
    #[arg(long, value_name = "ADDRESS")]
    pub server: Option<String>,
    /// Prove the key in this file, a line NAME:SECRET, to --server.
    #[arg(long, value_name = "FILE", env = "DAFS_KEY_FILE")]
    pub key_file: Option<PathBuf>,
    /// Start this dafs-server [default: the one in the directory of this program, built by cargo if need be].
    #[arg(long, value_name = "FILE", conflicts_with = "server")]
    pub server_program: Option<PathBuf>,
    /// Write the results to this file as JSON; - is standard output, instead of the table.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Draw the results into this file as SVG: crossover, overlap, noncontiguous, listio,
    /// sieve, locks, registration, pipeline, mpi, views, stripe, metadata, distance, scale.
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,
}

/// A dafs transport.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// TCP over loopback.
    Tcp,
    /// Shared memory.
    Shm,
    /// RDMA, in a build with it (cargo build --features dafs-bench/verbs,dafs-server/verbs).
    Verbs,
}

impl Transport {
    /// Its name, as in addresses.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Shm => "shm",
            Self::Verbs => "verbs",
        }
    }
}

/// Which memory the client uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Registered {
    /// Registered buffers.
    Yes,
    /// Ordinary memory.
    No,
    /// One after the other.
    Both,
}

impl Registered {
    /// The values of a row's `registered`.
    pub fn values(self) -> Vec<bool> {
        match self {
            Self::Yes => vec![true],
            Self::No => vec![false],
            Self::Both => vec![true, false],
        }
    }
}

/// How an end waits for the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Poll {
    /// Sleep in the kernel.
    Event,
    /// Spin: a CPU for each end.
    Busy,
    /// Spin for a short time, then sleep.
    Adaptive,
}

impl Poll {
    /// Its name, as `dafs-server --poll` takes it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Event => "event",
            Self::Busy => "busy",
            Self::Adaptive => "adaptive",
        }
    }
}

/// Systems to compare with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Peer {
    /// A server of dafs on the same directory, mounted over TCP by `dafs mount`, the command beside the server's program: what programs
    /// that use the mount get.
    MountTcp,
    /// The same over shared memory.
    MountShm,
    /// A bare FUSE program that keeps files in memory, part of this process: the raw limit of a mount.
    Fuse,
    /// libnfs against NFS-Ganesha, both in user space, over loopback TCP (Debian: nfs-ganesha, nfs-ganesha-vfs,
    /// libnfs13). Needs root.
    Nfs,
    /// The programs of perftest on the same RDMA device, ib_send_lat, ib_write_bw and ib_read_bw: what others measure of it
    /// (Debian: perftest).
    Perftest,
}

/// Largest operation: the file is 64 MiB, and a queue of operations has a buffer each.
const SIZE_MAX: usize = 16 << 20;
const DEPTH_MAX: usize = 1024;
/// Pieces of one operation.
const SEGMENTS_MAX: usize = 65_536;
/// Each session takes descriptors in this process and in the server.
const SESSIONS_MAX: usize = 10_000;

fn parse_size(text: &str) -> Result<usize, String> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let shift = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        _ => return Err(format!("`{unit}` is not a unit; use none (bytes), K, M or G (powers of 1024)")),
    };
    let number: usize = number.parse().map_err(|_| "a size is a number and perhaps K, M or G".to_owned())?;
    match number.checked_mul(1 << shift) {
        Some(bytes) if (1..=SIZE_MAX).contains(&bytes) => Ok(bytes),
        _ => Err("sizes go from 1 byte to 16 MiB".to_owned()),
    }
}

fn parse_file_size(text: &str) -> Result<u64, String> {
    let number = text.trim().trim_end_matches(char::is_alphabetic);
    let shift = match text.trim()[number.len()..].to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        "t" | "tib" => 40,
        _ => return Err("a size of a file is a number and perhaps K, M, G or T".to_owned()),
    };
    let bytes = number.trim().parse::<u64>().ok().and_then(|number| number.checked_mul(1 << shift));
    bytes
        .filter(|bytes| (16 << 20..=1 << 40).contains(bytes) && bytes.is_multiple_of(1 << 20))
        .ok_or_else(|| "from 16 MiB to 1 TiB, whole MiB".to_owned())
}

fn parse_depth(text: &str) -> Result<usize, String> {
    let depth: usize = text.trim().parse().map_err(|_| "a queue depth is a whole number".to_owned())?;
    if (1..=DEPTH_MAX).contains(&depth) {
        Ok(depth)
    } else {
        Err(format!("queue depths go from 1 to {DEPTH_MAX}"))
    }
}

fn parse_segments(text: &str) -> Result<usize, String> {
    match text.trim().parse() {
        Ok(count) if (1..=SEGMENTS_MAX).contains(&count) => Ok(count),
        _ => Err(format!("pieces go from 1 to {SEGMENTS_MAX}")),
    }
}

fn parse_sessions(text: &str) -> Result<usize, String> {
    match text.trim().parse() {
        Ok(count) if (1..=SESSIONS_MAX).contains(&count) => Ok(count),
        _ => Err(format!("sessions go from 1 to {SESSIONS_MAX}")),
    }
}

fn parse_time(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| "seconds are a number such as 110".to_owned())?;
    if (0.0..=86_400.0).contains(&seconds) {
        Ok(seconds)
    } else {
        Err("the time goes from 0 to 86400".to_owned())
    }
}

fn parse_seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| "seconds are a number such as 0.1".to_owned())?;
    if (0.001..=3600.0).contains(&seconds) {
        Ok(seconds)
    } else {
        Err("seconds go from 0.001 to 3600".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cli_definition_is_consistent() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }

    #[test]
    fn size_with_and_without_unit_is_bytes() {
        for (text, bytes) in [
            ("4", 4),
            ("4096", 4096),
            ("64KiB", 65536),
            ("64K", 65536),
            ("1m", 1 << 20),
            ("16 MiB", 16 << 20),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for (text, bytes) in [
            ("16777216", 16 << 20),
            ("16384K", 16 << 20),
            ("16M", 16 << 20),
            ("1GiB", 1 << 30),
            ("1T", 1 << 40),
        ] {
            assert_eq!(parse_file_size(text), Ok(bytes), "{text}");
        }
        assert!(parse_file_size("15M").is_err() && parse_file_size("2T").is_err());
        assert!(parse_file_size("20000000").is_err() && parse_file_size("20971520").is_ok());
    }

    #[test]
    fn size_that_is_wrong_is_refused() {
        for text in
            ["", "0", "-1", "4KB", "KiB", "17MiB", "1G", "99999999999999999999", "18446744073709551615MiB"]
        {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn depth_and_seconds_at_their_edges() {
        assert!(parse_depth("0").is_err() && parse_depth("1").is_ok());
        assert!(parse_depth("1024").is_ok() && parse_depth("1025").is_err());
        assert!(parse_sessions("0").is_err() && parse_sessions("1").is_ok());
        assert!(parse_sessions("10000").is_ok() && parse_sessions("10001").is_err());
        assert!(
            parse_seconds("0").is_err() && parse_seconds("nan").is_err() && parse_seconds("0.001").is_ok()
        );
    }
}
