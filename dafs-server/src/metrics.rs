//! Statistics as Prometheus text, and the small HTTP responder that shows them.

mod http;

use std::fmt::Write;

use dafs_proto::wire::{PipelineStatistics, Statistics, ZoneStatistics};

/// What is told of each `T`: name, help, kind, and its value.
type Figure<T> = (&'static str, &'static str, &'static str, fn(&T) -> u64);

pub use http::{CONNECTIONS_MAX, MetricsServer, REQUEST_SIZE_MAX, REQUEST_TIME_MAX};

/// All that there is to show: the statistics, and what the providers count.
pub fn render_all(statistics: &Statistics) -> String {
    #[allow(unused_mut, reason = "only some builds have a provider that counts")]
    let mut text = render(statistics);
    #[cfg(feature = "verbs")]
    for (name, help, value) in dafs_proto::transport::verbs::totals().named() {
        let name = format!("dafs_verbs_{name}_total");
        family(&mut text, &name, "counter", help);
        let _ = writeln!(text, "{name} {value}");
    }
    text
}

/// The statistics in the text format of Prometheus, version 0.0.4.
pub fn render(statistics: &Statistics) -> String {
    let mut text = String::with_capacity(4096);
    let gauges = [
        ("dafs_sessions", "Sessions.", statistics.sessions),
        ("dafs_connections", "Connections.", statistics.connections),
        ("dafs_operations_in_flight", "Operations in flight.", statistics.in_flight),
        ("dafs_handles_open", "Open handles.", statistics.handles),
        ("dafs_lanes_bytes", "Memory lent to clients as lanes.", statistics.lanes_size),
    ];
    for (name, help, value) in gauges {
        family(&mut text, name, "gauge", help);
        let _ = writeln!(text, "{name} {value}");
    }
    family(&mut text, "dafs_uptime_seconds", "gauge", "Time since the server began.");
    let (seconds, ms) = (statistics.uptime_ms / 1000, statistics.uptime_ms % 1000);
    let _ = writeln!(text, "dafs_uptime_seconds {seconds}.{ms:03}");
    let counters = [
        ("dafs_replies_replayed_total", "Replies sent again from the cache.", statistics.replies_replayed),
        (
            "dafs_protocol_errors_total",
            "Sessions ended because the client broke the protocol.",
            statistics.protocol_errors,
        ),
        (
            "dafs_storage_waits_total",
            "Reads and writes that had to wait for storage.",
            statistics.storage_waits,
        ),
    ];
    for (name, help, value) in counters {
        family(&mut text, name, "counter", help);
        let _ = writeln!(text, "{name} {value}");
    }
    family(&mut text, "dafs_operations_total", "counter", "Requests answered.");
    for (opcode, count) in &statistics.operations {
        let _ = writeln!(text, "dafs_operations_total{{opcode=\"{}\"}} {count}", escaped(opcode));
    }
    for (name, help, [inline, direct], place) in [
        ("dafs_read_bytes_total", "Bytes read by clients.", statistics.bytes_read, 0),
        ("dafs_written_bytes_total", "Bytes written by clients.", statistics.bytes_written, 1),
    ] {
        family(&mut text, name, "counter", help);
        let (fast, client) = (statistics.bytes_fast[place], statistics.bytes_client[place]);
        for (method, value) in [("inline", inline), ("direct", direct), ("fast", fast), ("client", client)] {
            let _ = writeln!(text, "{name}{{method=\"{method}\"}} {value}");
        }
    }
    family(&mut text, "dafs_export_read_bytes_total", "counter", "Bytes read from an export.");
    for export in &statistics.exports {
        let (name, bytes) = (escaped(&export.name), export.bytes_read);
        let _ = writeln!(text, "dafs_export_read_bytes_total{{export=\"{name}\"}} {bytes}");
    }
    family(&mut text, "dafs_export_written_bytes_total", "counter", "Bytes written to an export.");
    for export in &statistics.exports {
        let (name, bytes) = (escaped(&export.name), export.bytes_written);
        let _ = writeln!(text, "dafs_export_written_bytes_total{{export=\"{name}\"}} {bytes}");
    }
    render_buffers(&mut text, statistics);
    text
}

fn render_buffers(text: &mut String, statistics: &Statistics) {
    let zones: [Figure<ZoneStatistics>; 6] = [
        ("dafs_buffers", "gauge", "Transfer buffers.", |zone| zone.total),
        ("dafs_buffers_free", "gauge", "Transfer buffers that nobody has.", |zone| zone.free),
        ("dafs_buffers_lent", "gauge", "Transfer buffers that operations have.", |zone| zone.lent),
        (
            "dafs_buffers_lent_from_bigger_total",
            "counter",
            "Bigger buffers lent in place of one of this size.",
            |zone| zone.lent_from_bigger,
        ),
        (
            "dafs_buffers_chops_total",
            "counter",
            "Smaller buffers lent in place of one of this size.",
            |zone| zone.chops,
        ),
        (
            "dafs_buffers_waits_total",
            "counter",
            "Operations that waited for a buffer of this size.",
            |zone| zone.waits,
        ),
    ];
    for (name, kind, help, value) in zones {
        family(text, name, kind, help);
        for zone in &statistics.zones {
            let _ = writeln!(text, "{name}{{size=\"{}\"}} {}", zone.size, value(zone));
        }
    }
    let pipelines: [Figure<PipelineStatistics>; 4] = [
        ("dafs_chunk_bytes", "gauge", "Size of a chunk of large transfers.", |pipeline| pipeline.chunk_size),
        ("dafs_pipeline_depth", "gauge", "Chunks of a transfer in progress at once.", |pipeline| {
            pipeline.depth
        }),
        ("dafs_chunks_total", "counter", "Chunks of transfers.", |pipeline| pipeline.chunks),
        (
            "dafs_chunks_overlapped_total",
            "counter",
            "Chunks that began while another of their transfer was in progress.",
            |pipeline| pipeline.overlaps,
        ),
    ];
    for (name, kind, help, value) in pipelines {
        family(text, name, kind, help);
        for pipeline in &statistics.pipelines {
            let listener = escaped(&pipeline.listener);
            let _ = writeln!(text, "{name}{{listener=\"{listener}\"}} {}", value(pipeline));
        }
    }
}

fn family(text: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

fn escaped(label: &str) -> String {
    label.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use dafs_proto::wire::ExportStatistics;

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
            bytes_fast: [115, 116],
            bytes_client: [117, 118],
            lanes_size: 119,
            zones: vec![ZoneStatistics {
                size: 4096,
                total: 120,
                free: 121,
                lent: 122,
                lent_from_bigger: 123,
                chops: 124,
                waits: 125,
            }],
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
        for value in 101..=129 {
            assert_eq!(values.iter().filter(|seen| **seen == value.to_string()).count(), 1, "{value}");
        }
        assert!(text.contains("dafs_uptime_seconds 61.007\n"));
        assert!(text.contains("dafs_export_read_bytes_total{export=\"a\\\"b\\\\c\\nd\"} 113\n"));
        assert!(text.contains("dafs_read_bytes_total{method=\"direct\"} 107\n"));
    }

    #[test]
    fn render_declares_each_family_before_its_values() {
        let text = render_all(&Statistics::default());
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let name = line.split(['{', ' ']).next().unwrap();
            let declared = text.find(&format!("# TYPE {name} ")).expect(name);
            assert!(declared < text.find(line).unwrap());
            assert_eq!(text.matches(&format!("# TYPE {name} ")).count(), 1);
        }
    }
}
