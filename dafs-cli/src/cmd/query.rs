//! Questions to a server: `dafs exports`, `ping`, `info` and `stats`.

use std::ffi::OsStr;
use std::process::ExitCode;
use std::time::Duration;

use dafs_client::{Agreed, Direction, LimitsReply, Registration, Session, Statistics, Url};
use dafs_proto::wire::{ClientStatistics, PipelineStatistics};
use serde_json::{Value, json};

use super::fence::shown_id;
use crate::flags::{Info, Ping, Queries};
use crate::format::Owners;
use crate::output::Output;
use crate::quote::quoted;
use crate::remote::{Remotes, parse};
use crate::report::{Failure, INTERRUPTED, Result};
use crate::signals::Interrupt;

pub(crate) fn exports(flags: &Queries, remotes: &Remotes) -> Result<ExitCode> {
    let (url, session) = connect(&flags.url, remotes)?;
    let names = session.exports().map_err(|error| Failure::at("list the exports of", &url, &error))?;
    let mut out = Output::new();
    if flags.json {
        out.line(&json!({ "exports": names }).to_string())?;
    } else {
        for name in &names {
            out.name(name.as_bytes())?;
            out.line("")?;
        }
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn ping(flags: &Ping, remotes: &Remotes) -> Result<ExitCode> {
    let (url, session) = connect(&flags.url, remotes)?;
    let (interrupt, mut out) = (Interrupt::catch(|_| {}), Output::new());
    let mut times = Times::default();
    let mut is_interrupted = false;
    for number in 1..=flags.count {
        is_interrupted = interrupt.is_set();
        if is_interrupted {
            break;
        }
        let time = session.ping().map_err(|error| Failure::at("ping", &url, &error))?;
        times.add(time);
        // Beyond a screen, only the summary tells anything.
        if !flags.json && flags.count <= 20 {
            out.line(&format!("reply {number} from {}: {:.1} us", session.address(), microseconds(time)))?;
            out.flush()?;
        }
    }
    if let Some(summary) = times.summary(flags.json, session.provider().name()) {
        out.line(&summary)?;
    }
    out.flush()?;
    Ok(if is_interrupted { ExitCode::from(INTERRUPTED) } else { ExitCode::SUCCESS })
}

/// Round trips that are kept for the median and what is alike.
const KEPT_MAX: usize = 1 << 16;

/// What round trips took: of many, every second, fourth and so on is kept.
#[derive(Default)]
struct Times {
    count: u64,
    ends: Option<(Duration, Duration)>,
    kept: Vec<Duration>,
    /// Doublings of the distance between those that are kept.
    doublings: u32,
}

impl Times {
    fn add(&mut self, time: Duration) {
        let (min, max) = self.ends.unwrap_or((time, time));
        self.ends = Some((min.min(time), max.max(time)));
        if self.count.trailing_zeros() >= self.doublings {
            if self.kept.len() == KEPT_MAX {
                let mut number = 0;
                self.kept.retain(|_| {
                    number += 1;
                    number % 2 == 1
                });
                self.doublings += 1;
            }
            self.kept.push(time);
        }
        self.count += 1;
    }

    /// `None` of none.
    fn summary(&mut self, is_json: bool, provider: &str) -> Option<String> {
        self.kept.sort_unstable();
        let (times, count) = (&self.kept, self.count);
        let at = |percent: usize| times.get((times.len() * percent).div_ceil(100).saturating_sub(1)).copied();
        let (min, max) = self.ends?;
        let [min, p50, p99, max] = [min, at(50)?, at(99)?, max].map(microseconds);
        Some(match is_json {
            true => json!({ "provider": provider, "count": count, "min_us": min, "p50_us": p50, "p99_us": p99, "max_us": max }).to_string(),
            false => format!("{count} round trips over {provider}: min {min:.1}, median {p50:.1}, 99 % below {p99:.1}, max {max:.1} us"),
        })
    }
}

fn microseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

pub(crate) fn info(flags: &Info, remotes: &Remotes) -> Result<ExitCode> {
    let Some(url) = &flags.url else { return devices(flags.json) };
    let (url, session) = connect(url, remotes)?;
    let failed = |error| Failure::at("ask for the limits of", &url, &error);
    let limits = session.limits().map_err(failed)?;
    let stats = session.statistics().map_err(failed)?;
    let agreed = session.agreed();
    let mut out = Output::new();
    if flags.json {
        out.line(&info_json(&session, &limits, &stats).to_string())?;
    } else {
        let mut owners = Owners::default();
        let user = owners.user(limits.uid).to_owned();
        let acts_as =
            format!("{user} (uid {}), {} (gid {})", limits.uid, owners.group(limits.gid), limits.gid);
        let memory = match agreed.registers_ordinary_memory {
            true => "ordinary memory is registered for single operations",
            false => "ordinary memory is copied through registered buffers, or sent inline",
        };
        let rows = [
            ("server", session.address().to_string()),
            ("other servers", agreed.servers.join(", ")),
            ("transport", format!("{}: {}", session.provider(), session.provider_reason())),
            ("you are", acts_as),
            ("client id", shown_id(&session.client_id())),
            (
                "requests at once",
                format!(
                    "{} of {} slots (the server's target is {})",
                    session.credits(),
                    agreed.slots,
                    limits.credits
                ),
            ),
            (
                "inline at most",
                format!("reads {} bytes, writes {} bytes", agreed.read_inline_max, agreed.write_inline_max),
            ),
            ("direct pays from", crossover_text(&session)),
            ("lists gather", gather_text(&session)),
            ("one transfer", format!("{} bytes at most; larger ones are cut", agreed.transfer_size_max)),
            ("large ones move", pipelines_text(&stats)),
            ("server's buffers", zones_text(&stats)),
            ("memory", memory.to_owned()),
            ("open files", format!("{} at most", agreed.handles_max)),
            ("silence", silence_text(&agreed)),
        ];
        // A server that is alone tells of no others.
        table(&mut out, rows.into_iter().filter(|(_, text)| !text.is_empty()))?;
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// What each side makes of the other's silence.
fn silence_text(agreed: &Agreed) -> String {
    let (keep_alive_ms, lease_ms) = (agreed.keep_alive_ms, agreed.lease_ms);
    let text =
        format!("keep-alive every {keep_alive_ms} ms; the session ends after {lease_ms} ms of silence");
    match agreed.term_ms {
        Some(term_ms) => format!("{text}; another server is asked after {term_ms} ms of this one's"),
        None => text,
    }
}

fn info_json(session: &Session, limits: &LimitsReply, stats: &Statistics) -> Value {
    let agreed = session.agreed();
    json!({
        "address": session.address().to_string(),
        "provider": session.provider().name(),
        "provider_reason": session.provider_reason(),
        "slots": agreed.slots,
        "credits": session.credits(),
        "credits_target": limits.credits,
        "read_inline_max": agreed.read_inline_max,
        "write_inline_max": agreed.write_inline_max,
        "read_inline_limit": agreed.thresholds.read_inline_max,
        "write_inline_limit": agreed.thresholds.write_inline_max,
        "crossovers": agreed.thresholds.crossovers,
        "gather": agreed.gather,
        "transfer_size_max": agreed.transfer_size_max,
        "handles_max": agreed.handles_max,
        "keep_alive_ms": agreed.keep_alive_ms,
        "lease_ms": agreed.lease_ms,
        "term_ms": agreed.term_ms,
        "servers": agreed.servers,
        "registers_ordinary_memory": agreed.registers_ordinary_memory,
        "buffer_sizes": stats.zones.iter().map(|zone| zone.size).collect::<Vec<_>>(),
        "pipelines": stats.pipelines.iter().map(|pipeline| json!({
            "listener": pipeline.listener,
            "chunk_size": pipeline.chunk_size,
            "depth": pipeline.depth,
        })).collect::<Vec<_>>(),
        "client_id": shown_id(&session.client_id()),
        "uid": limits.uid,
        "gid": limits.gid,
    })
}

/// The RDMA devices of this machine. Fails when none can be used.
fn devices(is_json: bool) -> Result<ExitCode> {
    let found = dafs_client::rdma_devices();
    let is_usable =
        found.as_ref().is_ok_and(|devices| devices.iter().any(|device| device.unusable.is_none()));
    let mut out = Output::new();
    match (&found, is_json) {
        (Err(missing), true) => out.line(&json!({ "devices": [], "missing": missing }).to_string())?,
        (Err(missing), false) => out.line(&format!("no RDMA: {missing}"))?,
        (Ok(devices), true) => out.line(&json!({ "devices": devices }).to_string())?,
        (Ok(devices), false) => {
            for device in devices {
                out.line(&format!(
                    "{} port {}: {}, {}",
                    device.name, device.port, device.link_layer, device.state
                ))?;
                // Nothing is known of one that cannot be opened.
                if device.segments_max > 0 {
                    out.line(&format!(
                        "    {} segments a request, {} requests a queue, {} reads at once, messages of {} bytes, {} connections",
                        device.segments_max,
                        device.queue_depth_max,
                        device.reads_max,
                        device.message_size_max,
                        device.connections_max
                    ))?;
                }
                if let Some(why) = &device.unusable {
                    out.line(&format!("    cannot be used: {why}"))?;
                }
            }
        }
    }
    out.flush()?;
    Ok(if is_usable { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// In what chunks large transfers move, on each listener.
fn pipelines_text(stats: &Statistics) -> String {
    stats.pipelines.iter().map(pipeline_text).collect::<Vec<_>>().join("; ")
}

fn pipeline_text(pipeline: &PipelineStatistics) -> String {
    let (chunk, depth) = (pipeline.chunk_size >> 10, pipeline.depth);
    format!("{}: chunks of {chunk} KiB, {depth} at once", pipeline.listener)
}

/// Names, as far to the right as the longest reaches, and what is said of each.
fn table<N: AsRef<str>>(out: &mut Output, rows: impl IntoIterator<Item = (N, String)>) -> Result<()> {
    rows.into_iter().try_for_each(|(name, value)| out.line(&format!("{:>16}: {value}", name.as_ref())))
}

/// What data passes through that storage and network cannot move at once.
fn zones_text(stats: &Statistics) -> String {
    let each = stats
        .zones
        .iter()
        .map(|zone| format!("{} KiB ({} of {} lent)", zone.size >> 10, zone.lent, zone.total));
    each.collect::<Vec<_>>().join(", ")
}

/// From which pieces of memory on gathering pays; a session learns what it sees otherwise.
fn gather_text(session: &Session) -> String {
    let Some(gather) = session.agreed().gather else {
        return "registered memory; the server has not measured it".to_owned();
    };
    let from = |size: u32| if size == u32::MAX { "never".to_owned() } else { format!("from {size}") };
    format!(
        "by bytes of a piece: reads {} (ordinary memory {}), writes {} ({}); adjusted by what the session measures",
        from(gather.read_registered),
        from(gather.read_unregistered),
        from(gather.write_registered),
        from(gather.write_unregistered)
    )
}

fn crossover_text(session: &Session) -> String {
    let agreed = session.agreed();
    let crossovers = agreed.thresholds.crossovers;
    // What no message holds is direct in any case.
    let size = |bytes: u32, inline_max: u32| match bytes > inline_max {
        true => format!("above {inline_max}"),
        false => format!("{bytes}"),
    };
    let (read_max, write_max) = (agreed.read_inline_max, agreed.write_inline_max);
    let sample = session.explain(Direction::Read, 64 * 1024, Registration::Ordinary);
    format!(
        "reads: {} bytes (memory not registered: {}), writes: {} bytes (not registered: {}); for example, {sample}",
        size(crossovers.read_registered, read_max),
        size(crossovers.read_unregistered, read_max),
        size(crossovers.write_registered, write_max),
        size(crossovers.write_unregistered, write_max)
    )
}

pub(crate) fn stats(flags: &Queries, remotes: &Remotes) -> Result<ExitCode> {
    let (url, session) = connect(&flags.url, remotes)?;
    let stats = session.statistics().map_err(|error| Failure::at("ask for the counters of", &url, &error))?;
    let mut out = Output::new();
    if flags.json {
        // The reply as it is: its field names are the protocol's.
        let value = serde_json::to_value(&stats)
            .map_err(|error| Failure::text(format!("cannot write the counters: {error}")))?;
        out.line(&value.to_string())?;
    } else {
        let [read, written] = [stats.bytes_read, stats.bytes_written]
            .map(|[inline, direct]| format!("{inline} bytes inline, {direct} direct"));
        let mut rows = vec![
            ("up".to_owned(), format!("{} s", stats.uptime_ms / 1000)),
            ("sessions".into(), stats.sessions.to_string()),
            ("connections".into(), stats.connections.to_string()),
            ("in flight".into(), stats.in_flight.to_string()),
            ("open handles".into(), stats.handles.to_string()),
            ("read".into(), read),
            ("written".into(), written),
            ("replayed".into(), stats.replies_replayed.to_string()),
            ("protocol errors".into(), stats.protocol_errors.to_string()),
            ("storage waits".into(), stats.storage_waits.to_string()),
            ("sieved windows".into(), stats.sieved_windows.to_string()),
        ];
        let operations = stats.operations.iter().filter(|(_, count)| *count > 0);
        rows.extend(operations.map(|(name, count)| (name.to_lowercase(), count.to_string())));
        rows.extend(stats.zones.iter().map(|zone| {
            let (size, lent, total) = (zone.size >> 10, zone.lent, zone.total);
            let (waits, chops, bigger) = (zone.waits, zone.chops, zone.lent_from_bigger);
            let lent =
                format!("{lent} of {total} lent; {waits} waits, {chops} cut, {bigger} larger ones lent");
            ("buffers".into(), format!("{size} KiB: {lent}"))
        }));
        rows.extend(stats.pipelines.iter().map(|pipeline| {
            let (chunks, overlaps) = (pipeline.chunks, pipeline.overlaps);
            let shape = pipeline_text(pipeline);
            ("pipeline".into(), format!("{shape}; {chunks} moved, {overlaps} of them beside others"))
        }));
        rows.extend(stats.exports.iter().map(|export| {
            let (name, read, written) =
                (quoted(export.name.as_bytes()), export.bytes_read, export.bytes_written);
            ("export".into(), format!("{name}: {read} bytes read, {written} written"))
        }));
        rows.extend(stats.clients.iter().map(|client| ("client".into(), client_text(client))));
        table(&mut out, rows)?;
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// A client, by what a fence names.
fn client_text(client: &ClientStatistics) -> String {
    let id: String = client.client_id.iter().map(|byte| format!("{byte:02x}")).collect();
    let from = if client.address.is_empty() { "the server's host" } else { &client.address };
    let key = if client.key.is_empty() {
        String::new()
    } else {
        format!(", key {}", quoted(client.key.as_bytes()))
    };
    let (name, sessions) = (quoted(client.name.as_bytes()), client.sessions);
    let sessions = if sessions == 1 { "1 session".to_owned() } else { format!("{sessions} sessions") };
    format!("{id} {name} from {}{key}, {sessions}", quoted(from.as_bytes()))
}

fn connect(url: &OsStr, remotes: &Remotes) -> Result<(Url, Session)> {
    let url = parse(url)?;
    let session = remotes.session(&url)?;
    Ok((url, session))
}

#[cfg(test)]
mod tests {
    use super::*;

    // [CMD-37]
    #[test]
    fn round_trips_of_any_number_are_summed_up_in_bounded_memory() {
        let mut times = Times::default();
        assert_eq!(times.summary(false, "tcp"), None);
        let count = 5 * KEPT_MAX as u64;
        // In an order that has each part of them everywhere.
        for number in 0..count {
            times.add(Duration::from_micros(number * 7919 % count + 1));
            assert!(times.kept.len() <= KEPT_MAX);
        }
        let summary: Value = serde_json::from_str(&times.summary(true, "tcp").unwrap()).unwrap();
        let is_about = |field: &str, part: f64| {
            let found = summary[field].as_f64().unwrap() / count as f64;
            assert!((found - part).abs() < 0.01, "{summary}");
        };
        is_about("p50_us", 0.5);
        is_about("p99_us", 0.99);
        assert_eq!((&summary["count"], &summary["min_us"]), (&json!(count), &json!(1.0)));
        assert_eq!(summary["max_us"], json!(count as f64));
    }
}
