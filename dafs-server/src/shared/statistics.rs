//! Adds up the counters of workers.

use dafs_proto::wire::Statistics;

/// Adds what another worker has counted. Times, names and settings stay those of the sum: they are alike, and so are exports, sizes of
/// buffers and listeners.
pub(super) fn add(sum: &mut Statistics, other: &Statistics) {
    for (name, count) in &other.operations {
        match sum.operations.iter_mut().find(|(known, _)| known == name) {
            Some((_, sum)) => *sum += count,
            None => sum.operations.push((name.clone(), *count)),
        }
    }
    let mut other = other.clone();
    numbers(sum).zip(numbers(&mut other)).for_each(|(sum, other)| *sum += *other);
}

/// What is added up, but for operations.
fn numbers(of: &mut Statistics) -> impl Iterator<Item = &mut u64> {
    let single = [
        &mut of.sessions,
        &mut of.connections,
        &mut of.in_flight,
        &mut of.handles,
        &mut of.replies_replayed,
        &mut of.protocol_errors,
        &mut of.storage_waits,
        &mut of.sieved_windows,
        &mut of.eager_buffers_size,
    ];
    let bytes =
        [&mut of.bytes_read, &mut of.bytes_written, &mut of.bytes_eager, &mut of.bytes_client_initiated];
    let exports = of.exports.iter_mut().flat_map(|of| [&mut of.bytes_read, &mut of.bytes_written]);
    let zones = of.zones.iter_mut().flat_map(|of| {
        [&mut of.total, &mut of.free, &mut of.lent, &mut of.lent_from_bigger, &mut of.chops, &mut of.waits]
    });
    let pipelines = of.pipelines.iter_mut().flat_map(|of| [&mut of.overlaps, &mut of.chunks]);
    single.into_iter().chain(bytes.into_iter().flatten()).chain(exports).chain(zones).chain(pipelines)
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
            sieved_windows: 40 * n,
            exports: vec![ExportStatistics {
                name: "data".into(),
                bytes_read: 13 * n,
                bytes_written: 14 * n,
            }],
            bytes_eager: [15 * n, 16 * n],
            bytes_client_initiated: [17 * n, 18 * n],
            eager_buffers_size: 19 * n,
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
            clients: Vec::new(),
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
