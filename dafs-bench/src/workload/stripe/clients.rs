//! The clients: threads of this process, each with sessions of its own.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, ensure};
use dafs_client::{Extent, OpenOptions};
use dafs_stripe::{File, Striping, Volume};

use crate::interrupt;
use crate::record::Op;
use crate::sys;

use super::cluster::Cluster;

/// How the rows of a tile travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tile {
    /// One contiguous operation after the other.
    Multiple,
    /// All in one call.
    List,
}

impl Tile {
    /// Two times two displays.
    pub(super) const CLIENTS: usize = 4;
    /// Lines of a display.
    pub(super) const ROWS: usize = 768;
    /// 1,024 elements of 24 bytes.
    pub(super) const ROW_BYTES: usize = 1024 * 24;

    /// The rows of one display in the file of all.
    fn extents(client: usize) -> Vec<Extent> {
        let (across, down) = (client % 2, client / 2);
        let row = |row: usize| Extent {
            offset: (((down * Self::ROWS + row) * 2 + across) * Self::ROW_BYTES) as u64,
            len: Self::ROW_BYTES as u64,
        };
        (0..Self::ROWS).map(row).collect()
    }
}

/// What all clients together moved.
#[derive(Debug, Clone, Copy)]
pub(super) struct Moved {
    pub(super) bytes: u64,
    pub(super) elapsed: Duration,
    /// Of all clients.
    pub(super) cpu_ns: u64,
}

impl Moved {
    pub(super) fn mib(&self) -> f64 {
        self.bytes as f64 / (1 << 20) as f64
    }

    pub(super) fn mib_per_s(&self) -> f64 {
        self.mib() / self.elapsed.as_secs_f64()
    }

    pub(super) fn cpu_percent(&self) -> f64 {
        self.cpu_ns as f64 / 1e7 / self.elapsed.as_secs_f64()
    }
}

/// Clients and the files that they have open.
pub(super) struct Clients {
    each: Vec<Client>,
    unit: u64,
    /// What was written last: another byte each time.
    stamp: u8,
}

struct Client {
    volume: Volume,
    /// By name.
    files: Vec<(String, File)>,
}

impl Client {
    /// A file of this name over so many servers.
    fn file(&mut self, name: &str, servers: usize, unit: u64) -> anyhow::Result<&File> {
        let place = match self.files.iter().position(|(other, _)| other == name) {
            Some(place) => place,
            None => {
                let options = OpenOptions::new().read(true).write(true).create(true).clone();
                let striping = Striping { unit, factor: Some(servers), first: Some(0) };
                self.files.push((name.to_owned(), self.volume.create(name, &options, &striping)?));
                self.files.len() - 1
            }
        };
        Ok(&self.files[place].1)
    }
}

impl Clients {
    pub(super) fn connect(cluster: &Cluster, count: usize, unit: u64) -> anyhow::Result<Self> {
        let client = |_| Ok(Client { volume: cluster.volume()?, files: Vec::new() });
        Ok(Self { each: (0..count).map(client).collect::<anyhow::Result<_>>()?, unit, stamp: 0 })
    }

    /// Each of the first clients moves its own region of `bytes`, again and again.
    pub(super) fn contiguous(
        &mut self,
        op: Op,
        servers: usize,
        clients: usize,
        bytes: usize,
        duration: Duration,
    ) -> anyhow::Result<Moved> {
        self.run(
            &format!("over-{servers}"),
            op,
            (servers, clients, bytes),
            duration,
            |client, file, buffer| {
                let offset = (client * bytes) as u64;
                match op {
                    Op::Write => file.write_all_at(buffer, offset)?,
                    _ => file.read_exact_at(buffer, offset)?,
                }
                Ok(())
            },
        )
    }

    /// Four clients move their tiles, again and again.
    pub(super) fn tiles(
        &mut self,
        tile: Tile,
        op: Op,
        servers: usize,
        duration: Duration,
    ) -> anyhow::Result<Moved> {
        let extents: Vec<Vec<Extent>> = (0..Tile::CLIENTS).map(Tile::extents).collect();
        let size = (servers, Tile::CLIENTS, Tile::ROWS * Tile::ROW_BYTES);
        self.run("tiles", op, size, duration, |client, file, buffer| {
            let extents = &extents[client];
            match (tile, op) {
                (Tile::List, Op::Write) => {
                    let count = file.write_list(extents, buffer)?;
                    ensure!(count == buffer.len(), "a list was written in part");
                }
                (Tile::List, _) => {
                    let read = file.read_list(extents, buffer)?;
                    ensure!(read.count == buffer.len(), "a list was read in part");
                }
                (Tile::Multiple, _) => {
                    for (extent, row) in extents.iter().zip(buffer.chunks_exact_mut(Tile::ROW_BYTES)) {
                        match op {
                            Op::Write => file.write_all_at(row, extent.offset)?,
                            _ => file.read_exact_at(row, extent.offset)?,
                        }
                    }
                }
            }
            Ok(())
        })
    }

    /// Has clients call `step` with a buffer until the time is over, and looks at what came. The file is there, with what all wrote last.
    fn run(
        &mut self,
        name: &str,
        op: Op,
        (servers, count, bytes): (usize, usize, usize),
        duration: Duration,
        step: impl Fn(usize, &File, &mut [u8]) -> anyhow::Result<()> + Sync,
    ) -> anyhow::Result<Moved> {
        if op == Op::Write {
            self.stamp = self.stamp.wrapping_add(1);
        }
        let (unit, stamp) = (self.unit, self.stamp);
        let mut files = Vec::new();
        for client in &mut self.each[..count] {
            files.push(client.file(name, servers, unit)?);
        }
        let start = Barrier::new(count + 1);
        let work = |client: usize, file: &File| {
            let mut buffer = vec![if op == Op::Write { stamp } else { !stamp }; bytes];
            start.wait();
            let (began, mut done) = (Instant::now(), 0);
            let moved = loop {
                if let Err(error) = interrupt::check().and_then(|()| step(client, file, &mut buffer)) {
                    break Err(error);
                }
                done += bytes as u64;
                if began.elapsed() >= duration {
                    break Ok(done);
                }
            };
            let end = Instant::now();
            moved.map(|bytes| (bytes, end, buffer))
        };
        std::thread::scope(|scope| {
            let work = &work;
            let threads: Vec<_> =
                (0..).zip(&files).map(|(client, file)| scope.spawn(move || work(client, file))).collect();
            start.wait();
            let (began, cpu_before) = (Instant::now(), sys::process_cpu_ns());
            let ended =
                threads.into_iter().map(|thread| thread.join().map_err(|_| anyhow!("a client panicked"))?);
            let ended = ended.collect::<anyhow::Result<Vec<_>>>()?;
            let cpu_ns = sys::process_cpu_ns() - cpu_before;
            for (_, _, buffer) in &ended {
                // What another case wrote there may be older: all of one region is of one writing.
                ensure!(buffer.iter().all(|byte| *byte == buffer[0]), "read what was not written");
            }
            let last = ended.iter().map(|(_, end, _)| *end).max().context("no client")?;
            Ok(Moved { bytes: ended.iter().map(|(bytes, ..)| bytes).sum(), elapsed: last - began, cpu_ns })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_cover_the_picture_once() {
        let mut all: Vec<u64> =
            (0..Tile::CLIENTS).flat_map(Tile::extents).map(|extent| extent.offset).collect();
        all.sort_unstable();
        let wanted = (0..Tile::CLIENTS * Tile::ROWS).map(|row| (row * Tile::ROW_BYTES) as u64);
        assert!(all.into_iter().eq(wanted));
    }
}
