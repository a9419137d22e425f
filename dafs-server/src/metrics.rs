//! Statistics as Prometheus text, and the small HTTP responder that shows them.

mod http;

use std::fmt::Write;
use std::time::Duration;

use dafs_proto::wire::{ExportStatistics, PipelineStatistics, Statistics, ZoneStatistics};

pub use http::{CONNECTIONS_MAX, MetricsServer, REQUEST_SIZE_MAX, REQUEST_TIME_MAX};

/// Values of one name, each with its label.
type Values = Vec<(String, u64)>;

/// Name, help, and the values.
type Family = (&'static str, &'static str, fn(&Statistics) -> Values);

/// All statistics. Names of counters end in `_total`.
const FAMILIES: &[Family] = &[
    ("dafs_sessions", "Sessions.", |all| one(all.sessions)),
    ("dafs_connections", "Connections.", |all| one(all.connections)),
    ("dafs_operations_in_flight", "Operations in flight.", |all| one(all.in_flight)),
    ("dafs_handles_open", "Open handles.", |all| one(all.handles)),
    ("dafs_eager_buffers_bytes", "Memory lent to clients as eager buffers.", |all| {
        one(all.eager_buffers_size)
    }),
    ("dafs_replies_replayed_total", "Replies sent again from the cache.", |all| one(all.replies_replayed)),
    ("dafs_protocol_errors_total", "Sessions ended because the client broke the protocol.", |all| {
        one(all.protocol_errors)
    }),
    ("dafs_storage_waits_total", "Reads and writes that had to wait for storage.", |all| {
        one(all.storage_waits)
    }),
    (
        "dafs_sieved_windows_total",
        "Windows of files that were written instead of small parts of lists (sieving).",
        |all| one(all.sieved_windows),
    ),
    ("dafs_operations_total", "Requests answered.", |all| {
        labelled("opcode", &all.operations, |(opcode, _)| opcode.clone(), |(_, count)| *count)
    }),
    ("dafs_read_bytes_total", "Bytes read by clients.", |all| methods(all, all.bytes_read, 0)),
    ("dafs_written_bytes_total", "Bytes written by clients.", |all| methods(all, all.bytes_written, 1)),
    ("dafs_export_read_bytes_total", "Bytes read from an export.", |all| {
        exports(all, |export| export.bytes_read)
    }),
    ("dafs_export_written_bytes_total", "Bytes written to an export.", |all| {
        exports(all, |export| export.bytes_written)
    }),
    ("dafs_buffers", "Transfer buffers.", |all| zones(all, |zone| zone.total)),
    ("dafs_buffers_free", "Transfer buffers that are free.", |all| zones(all, |zone| zone.free)),
    ("dafs_buffers_lent", "Transfer buffers that are lent.", |all| zones(all, |zone| zone.lent)),
    ("dafs_buffers_lent_from_bigger_total", "Larger buffers lent instead of one of this size.", |all| {
        zones(all, |zone| zone.lent_from_bigger)
    }),
    ("dafs_buffers_chops_total", "Smaller buffers lent instead of one of this size.", |all| {
        zones(all, |zone| zone.chops)
    }),
    ("dafs_buffers_waits_total", "Operations that waited for a buffer of this size.", |all| {
        zones(all, |zone| zone.waits)
    }),
    ("dafs_chunk_bytes", "Size of a chunk of large transfers.", |all| pipelines(all, |one| one.chunk_size)),
    ("dafs_pipeline_depth", "Chunks of a transfer in progress at once.", |all| {
        pipelines(all, |one| one.depth)
    }),
    ("dafs_chunks_total", "Chunks of transfers.", |all| pipelines(all, |one| one.chunks)),
    (
        "dafs_chunks_overlapped_total",
        "Chunks that began while another of their transfer was in progress.",
        |all| pipelines(all, |one| one.overlaps),
    ),
];

const LONGEST_TURN: &str = "dafs_loop_turn_longest_seconds";

/// Name, help, and the value of one budget.
type BudgetFamily = (&'static str, &'static str, fn(&BudgetState) -> u64);

/// The metrics of each budget.
const BUDGETS: &[BudgetFamily] = &[
    ("dafs_budget_used", "What clients use of a limit that they share.", |of| of.used),
    ("dafs_budget_limit", "Limit that clients share.", |of| of.limit),
    (
        "dafs_budget_refused_total",
        "Refusals because a shared limit, or one client's share of it, was reached.",
        |of| of.refused,
    ),
];

/// Name, help, and the value of one limit.
type SessionLimitFamily = (&'static str, &'static str, fn(&SessionLimitState) -> u64);

/// The metrics of each limit of one session.
const SESSION_LIMITS: &[SessionLimitFamily] = &[
    ("dafs_session_limit", "Limit of one session.", |of| of.limit),
    ("dafs_session_refused_total", "Refusals because a session had reached its limit.", |of| of.refused),
];

/// Name, help, and the value of one worker.
type WorkerFamily = (&'static str, &'static str, fn(&Statistics) -> u64);

/// The metrics of each worker. Those without a worker in their names are sums.
const WORKERS: &[WorkerFamily] = &[
    ("dafs_worker_sessions", "Sessions of a worker.", |own| own.sessions),
    ("dafs_worker_connections", "Connections of a worker.", |own| own.connections),
    ("dafs_worker_operations_in_flight", "Operations in flight of a worker.", |own| own.in_flight),
    ("dafs_worker_operations_total", "Requests that a worker answered.", |own| {
        own.operations.iter().map(|(_, count)| count).sum()
    }),
    (
        "dafs_worker_storage_waits_total",
        "Reads and writes of a worker that had to wait for storage.",
        |own| own.storage_waits,
    ),
];

/// The cluster as a server of it sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClusterState {
    /// Number of this server.
    pub server: u64,
    /// Servers whose terms are not over.
    pub servers: u64,
    /// The term of this one is not over.
    pub is_current: bool,
    /// Servers that this one has taken over from.
    pub takeovers: u64,
    /// Operations that wait for their intents to be written, or whose end is still to be.
    pub intents_pending: u64,
}

/// Name, help, and the value.
type ClusterFamily = (&'static str, &'static str, fn(&ClusterState) -> u64);

/// The metrics of a server of a cluster.
const CLUSTER: &[ClusterFamily] = &[
    ("dafs_cluster_server", "Number of this server in its cluster.", |of| of.server),
    ("dafs_cluster_servers", "Servers of the cluster whose terms are not over.", |of| of.servers),
    ("dafs_cluster_term_current", "Whether this server's term is not over.", |of| of.is_current.into()),
    ("dafs_cluster_takeovers_total", "Servers that this one has taken over from.", |of| of.takeovers),
    (
        "dafs_cluster_intents_pending",
        "Operations whose intents, or ends, are being written to the coordination store.",
        |of| of.intents_pending,
    ),
];

/// State of a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BudgetState {
    /// Its name.
    pub name: &'static str,
    /// What is taken now.
    pub used: u64,
    /// What all clients together may take.
    pub limit: u64,
    /// How often a client was refused.
    pub refused: u64,
}

/// A limit of one session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionLimitState {
    /// Its name.
    pub name: &'static str,
    /// As many as one session may have.
    pub limit: u64,
    /// How often one was refused more.
    pub refused: u64,
}

/// What is shown beside the statistics.
#[derive(Clone, Debug, Default)]
pub struct Extras {
    /// State of the budgets.
    pub budgets: Vec<BudgetState>,
    /// Limits of one session.
    pub session_limits: Vec<SessionLimitState>,
    /// Connections that were refused a session.
    pub logins_refused: u64,
    /// Longest time between two polls of an event loop.
    pub longest_turn: Duration,
    /// Lines left out of the log.
    pub log_lines_left_out: u64,
    /// Statistics of each worker by itself, the first one's first.
    pub workers: Vec<Statistics>,
    /// Of a server of a cluster.
    pub cluster: Option<ClusterState>,
}

/// All metrics: the statistics, the budgets, and what the providers count.
pub fn render_all(statistics: &Statistics, extras: &Extras) -> String {
    let mut text = render(statistics);
    let help = "Connections that got no session: a wrong or missing key, or no room.";
    family(&mut text, "dafs_logins_refused_total", help, one(extras.logins_refused));
    for (name, help, value) in BUDGETS {
        let values = labelled("budget", &extras.budgets, |of| of.name.to_owned(), value);
        family(&mut text, name, help, values);
    }
    let workers: Vec<_> = extras.workers.iter().enumerate().collect();
    for (name, help, value) in WORKERS {
        let values = labelled("worker", &workers, |(number, _)| number.to_string(), |(_, own)| value(own));
        family(&mut text, name, help, values);
    }
    for (name, help, value) in SESSION_LIMITS {
        let values = labelled("limit", &extras.session_limits, |of| of.name.to_owned(), value);
        family(&mut text, name, help, values);
    }
    for (name, help, value) in CLUSTER.iter().filter(|_| extras.cluster.is_some()) {
        family(&mut text, name, help, extras.cluster.iter().flat_map(|of| one(value(of))).collect());
    }
    let help = "Log lines not written: too many of one kind.";
    family(&mut text, "dafs_log_lines_left_out_total", help, one(extras.log_lines_left_out));
    let help = "Longest time between two polls of the event loop, since the server began.";
    family(&mut text, LONGEST_TURN, help, Vec::new());
    let _ = writeln!(text, "{LONGEST_TURN} {}", extras.longest_turn.as_secs_f64());
    #[cfg(feature = "verbs")]
    for (name, help, value) in dafs_proto::transport::verbs::totals().named() {
        family(&mut text, &format!("dafs_verbs_{name}_total"), help, one(value));
    }
    text
}

/// The statistics in the text format of Prometheus, version 0.0.4.
pub fn render(statistics: &Statistics) -> String {
    let mut text = String::with_capacity(4096);
    for (name, help, values) in FAMILIES {
        family(&mut text, name, help, values(statistics));
    }
    family(&mut text, "dafs_uptime_seconds", "Time since the server began.", Vec::new());
    let (seconds, ms) = (statistics.uptime_ms / 1000, statistics.uptime_ms % 1000);
    let _ = writeln!(text, "dafs_uptime_seconds {seconds}.{ms:03}");
    text
}

fn family(text: &mut String, name: &str, help: &str, values: Values) {
    let kind = if name.ends_with("_total") { "counter" } else { "gauge" };
    let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    for (label, value) in values {
        let _ = writeln!(text, "{name}{label} {value}");
    }
}

fn one(value: u64) -> Values {
    vec![(String::new(), value)]
}

fn labelled<T>(label: &str, of: &[T], name: impl Fn(&T) -> String, value: impl Fn(&T) -> u64) -> Values {
    let escaped = |name: String| name.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    of.iter().map(|one| (format!("{{{label}=\"{}\"}}", escaped(name(one))), value(one))).collect()
}

fn methods(all: &Statistics, [inline, direct]: [u64; 2], way: usize) -> Values {
    let (eager, client_initiated) = (all.bytes_eager[way], all.bytes_client_initiated[way]);
    let methods =
        [("inline", inline), ("direct", direct), ("eager", eager), ("client-initiated", client_initiated)];
    labelled("method", &methods, |(method, _)| (*method).to_owned(), |(_, bytes)| *bytes)
}

fn exports(all: &Statistics, value: fn(&ExportStatistics) -> u64) -> Values {
    labelled("export", &all.exports, |export| export.name.clone(), value)
}

fn zones(all: &Statistics, value: fn(&ZoneStatistics) -> u64) -> Values {
    labelled("size", &all.zones, |zone| zone.size.to_string(), value)
}

fn pipelines(all: &Statistics, value: fn(&PipelineStatistics) -> u64) -> Values {
    labelled("listener", &all.pipelines, |pipeline| pipeline.listener.clone(), value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn render_shows_every_number_once() {
        let text = render(&Statistics {
            uptime_ms: 61_007,
            sessions: 101,
            connections: 102,
            in_flight: 103,
            handles: 104,
            operations: vec![("Read".into(), 105)],
            bytes_read: [106, 107],
            bytes_written: [108, 109],
            replies_replayed: 110,
            protocol_errors: 111,
            storage_waits: 112,
            exports: vec![ExportStatistics {
                name: "a\"b\\c\nd".into(),
                bytes_read: 113,
                bytes_written: 114,
            }],
            bytes_eager: [115, 116],
            bytes_client_initiated: [117, 118],
            eager_buffers_size: 119,
            zones: vec![ZoneStatistics {
                size: 4096,
                total: 120,
                free: 121,
                lent: 122,
                lent_from_bigger: 123,
                chops: 124,
                waits: 125,
            }],
            clients: Vec::new(),
            sieved_windows: 130,
            pipelines: vec![PipelineStatistics {
                listener: "tcp".into(),
                chunk_size: 126,
                depth: 127,
                overlaps: 128,
                chunks: 129,
            }],
        });
        let values: Vec<_> = text
            .lines()
            .filter(|line| !line.starts_with('#'))
            .filter_map(|line| line.rsplit(' ').next())
            .collect();
        for value in 101..=130 {
            assert_eq!(values.iter().filter(|seen| **seen == value.to_string()).count(), 1, "{value}");
        }
        assert!(text.contains("dafs_uptime_seconds 61.007\n"));
        assert!(text.contains("dafs_export_read_bytes_total{export=\"a\\\"b\\\\c\\nd\"} 113\n"));
        assert!(text.contains("dafs_read_bytes_total{method=\"direct\"} 107\n"));
    }

    #[test]
    fn render_declares_each_family_before_its_values() {
        let budgets = vec![BudgetState { name: "sessions", used: 201, limit: 202, refused: 203 }];
        let session_limits = vec![SessionLimitState { name: "views", limit: 205, refused: 206 }];
        let (logins_refused, log_lines_left_out) = (7, 204);
        let worker = |sessions, count| Statistics {
            sessions,
            operations: vec![("Read".into(), count), ("Write".into(), 1)],
            ..Statistics::default()
        };
        let workers = vec![worker(301, 302), worker(304, 305)];
        let extras = Extras {
            budgets,
            session_limits,
            logins_refused,
            log_lines_left_out,
            workers,
            cluster: Some(ClusterState {
                server: 401,
                servers: 402,
                is_current: true,
                takeovers: 403,
                intents_pending: 404,
            }),
            ..Extras::default()
        };
        let text = render_all(&Statistics::default(), &extras);
        assert!(text.contains("dafs_session_limit{limit=\"views\"} 205\n"));
        assert!(text.contains("dafs_session_refused_total{limit=\"views\"} 206\n"));
        assert!(text.contains("dafs_budget_refused_total{budget=\"sessions\"} 203\n"));
        assert!(text.contains("dafs_log_lines_left_out_total 204\n"));
        assert!(
            text.contains("dafs_worker_sessions{worker=\"0\"} 301\ndafs_worker_sessions{worker=\"1\"} 304\n")
        );
        for line in
            ["server 401", "servers 402", "term_current 1", "takeovers_total 403", "intents_pending 404"]
        {
            assert!(text.contains(&format!("dafs_cluster_{line}\n")), "{line}");
        }
        assert!(text.contains("dafs_worker_operations_total{worker=\"1\"} 306\n"));
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let name = line.split(['{', ' ']).next().unwrap();
            let declared = text.find(&format!("# TYPE {name} ")).expect(name);
            assert!(declared < text.find(line).unwrap());
            assert_eq!(text.matches(&format!("# TYPE {name} ")).count(), 1);
        }
    }
}
