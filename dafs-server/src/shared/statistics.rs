//! Adds up the counters of workers.

use dafs_proto::wire::Statistics;

/// Adds what another worker has counted. Times, names and settings stay those of the sum: they are alike.
pub(super) fn add(sum: &mut Statistics, other: &Statistics) {
    for (sum, other) in [
        (&mut sum.sessions, other.sessions),
        (&mut sum.connections, other.connections),
        (&mut sum.in_flight, other.in_flight),
        (&mut sum.handles, other.handles),
        (&mut sum.replies_replayed, other.replies_replayed),
        (&mut sum.protocol_errors, other.protocol_errors),
        (&mut sum.storage_waits, other.storage_waits),
        (&mut sum.lanes_size, other.lanes_size),
    ] {
        *sum += other;
    }
    for (sum, other) in [
        (&mut sum.bytes_read, other.bytes_read),
        (&mut sum.bytes_written, other.bytes_written),
        (&mut sum.bytes_fast, other.bytes_fast),
        (&mut sum.bytes_client, other.bytes_client),
    ] {
        sum[0] += other[0];
        sum[1] += other[1];
    }
    for (name, count) in &other.operations {
        match sum.operations.iter_mut().find(|(known, _)| known == name) {
            Some((_, sum)) => *sum += count,
            None => sum.operations.push((name.clone(), *count)),
        }
    }
    for (sum, other) in sum.exports.iter_mut().zip(&other.exports) {
        sum.bytes_read += other.bytes_read;
        sum.bytes_written += other.bytes_written;
    }
    for (sum, other) in sum.zones.iter_mut().zip(&other.zones) {
        sum.total += other.total;
        sum.free += other.free;
        sum.lent += other.lent;
        sum.lent_from_bigger += other.lent_from_bigger;
        sum.chops += other.chops;
        sum.waits += other.waits;
    }
    for (sum, other) in sum.pipelines.iter_mut().zip(&other.pipelines) {
        sum.overlaps += other.overlaps;
        sum.chunks += other.chunks;
    }
}

#[cfg(test)]
mod tests {
    use dafs_proto::wire::{ExportStatistics, PipelineStatistics, ZoneStatistics};

    use super::*;

    /// Counters that are multiples of `n`, each another one.
    fn sample(n: u64) -> Statistics {
        Statistics {
            uptime_ms: 7,
            sessions: n,
            connections: 2 * n,
            in_flight: 3 * n,
            handles: 4 * n,
            operations: vec![("Read".into(), 5 * n)],
            bytes_read: [6 * n, 7 * n],
            bytes_written: [8 * n, 9 * n],
            replies_replayed: 10 * n,
            protocol_errors: 11 * n,
            storage_waits: 12 * n,
            exports: vec![ExportStatistics {
                name: "data".into(),
                bytes_read: 13 * n,
                bytes_written: 14 * n,
            }],
            bytes_fast: [15 * n, 16 * n],
            bytes_client: [17 * n, 18 * n],
            lanes_size: 19 * n,
            zones: vec![ZoneStatistics {
                size: 4096,
                total: 20 * n,
                free: 21 * n,
                lent: 22 * n,
                lent_from_bigger: 23 * n,
                chops: 24 * n,
                waits: 25 * n,
            }],
            pipelines: vec![PipelineStatistics {
                listener: "dafs://h".into(),
                chunk_size: 4096,
                depth: 4,
                overlaps: 26 * n,
                chunks: 27 * n,
            }],
        }
    }

    #[test]
    fn counters_of_two_workers_are_added_up() {
        let mut sum = sample(100);
        add(&mut sum, &sample(10));
        assert_eq!(sum, sample(110));
    }

    #[test]
    fn operations_that_only_the_other_worker_had_are_counted() {
        let mut sum = sample(1);
        add(&mut sum, &Statistics { operations: vec![("Write".into(), 5)], ..Statistics::default() });
        assert_eq!(sum.operations, [("Read".to_owned(), 5), ("Write".to_owned(), 5)]);
    }
}
