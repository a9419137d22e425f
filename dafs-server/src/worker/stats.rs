//! Counters of the server.

use dafs_proto::wire::{Method, Opcode};

/// What has been counted since the server began.
#[derive(Debug)]
pub struct Stats {
    operations: Vec<u64>,
    /// Bytes read: inline, direct, fast, client.
    pub bytes_read: [u64; METHODS],
    /// Bytes written: inline, direct, fast, client.
    pub bytes_written: [u64; METHODS],
    /// Replies sent again from the cache.
    pub replies_replayed: u64,
    /// Sessions ended because the client broke the protocol.
    pub protocol_errors: u64,
    /// Reads and writes that had to wait for storage.
    pub storage_waits: u64,
    /// Bytes read and written, by export.
    pub exports: Vec<[u64; 2]>,
    /// Chunks of transfers, and those of them that began while another of the transfer was in progress, by listener.
    pub pipelines: Vec<[u64; 2]>,
}

impl Stats {
    /// All zero.
    pub fn new(exports: usize) -> Self {
        Self {
            operations: vec![0; OPERATION_PLACES],
            bytes_read: [0; METHODS],
            bytes_written: [0; METHODS],
            replies_replayed: 0,
            protocol_errors: 0,
            storage_waits: 0,
            exports: vec![[0; 2]; exports],
            pipelines: Vec::new(),
        }
    }

    /// A request was answered.
    #[inline]
    pub fn on_operation(&mut self, opcode: Opcode) {
        if let Some(count) = self.operations.get_mut(usize::from(opcode.value())) {
            *count += 1;
        }
    }

    /// Data was read.
    #[inline]
    pub fn on_read(&mut self, export: usize, method: Method, bytes: usize) {
        self.bytes_read[place(method)] += bytes as u64;
        if let Some(export) = self.exports.get_mut(export) {
            export[0] += bytes as u64;
        }
    }

    /// Data was written.
    #[inline]
    pub fn on_write(&mut self, export: usize, method: Method, bytes: usize) {
        self.bytes_written[place(method)] += bytes as u64;
        if let Some(export) = self.exports.get_mut(export) {
            export[1] += bytes as u64;
        }
    }

    /// Requests answered, by opcode; those that occurred.
    pub fn operations(&self) -> Vec<(String, u64)> {
        Opcode::ALL
            .iter()
            .filter_map(|opcode| {
                let count = *self.operations.get(usize::from(opcode.value()))?;
                (count > 0).then(|| (opcode.name().to_owned(), count))
            })
            .collect()
    }
}

/// Request opcodes are all below this.
const OPERATION_PLACES: usize = 0x100;

/// Methods of transfer.
const METHODS: usize = 4;

fn place(method: Method) -> usize {
    match method {
        Method::Inline => 0,
        Method::Direct => 1,
        Method::Fast => 2,
        Method::Client => 3,
    }
}
