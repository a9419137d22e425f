//! Counters of a worker.

use dafs_proto::wire::{ExportStatistics, Method, Opcode, Statistics};

/// What has been counted since the server began.
#[derive(Debug)]
pub struct Stats {
    operations: Vec<u64>,
    /// Read, then written, by method.
    bytes: [[u64; 2]; METHODS],
    /// What is told as it is counted.
    pub counted: Statistics,
}

impl Stats {
    /// All zero, for exports of these names.
    pub fn new<'a>(exports: impl Iterator<Item = &'a str>) -> Self {
        let export = |name: &str| ExportStatistics { name: name.to_owned(), ..ExportStatistics::default() };
        let counted = Statistics { exports: exports.map(export).collect(), ..Statistics::default() };
        Self { operations: vec![0; OPERATION_PLACES], bytes: [[0; 2]; METHODS], counted }
    }

    /// A request was answered.
    #[inline]
    pub fn on_operation(&mut self, opcode: Opcode) {
        if let Some(count) = self.operations.get_mut(usize::from(opcode.value())) {
            *count += 1;
        }
    }

    /// Data was read or written.
    #[inline]
    pub fn on_moved(&mut self, writes: bool, export: usize, method: Method, bytes: usize) {
        self.bytes[place(method)][usize::from(writes)] += bytes as u64;
        if let Some(export) = self.counted.exports.get_mut(export) {
            let counter = if writes { &mut export.bytes_written } else { &mut export.bytes_read };
            *counter += bytes as u64;
        }
    }

    /// All that was counted.
    pub fn statistics(&self) -> Statistics {
        let [inline, direct, eager, client_initiated] = self.bytes;
        let count = |opcode: &Opcode| {
            let count = *self.operations.get(usize::from(opcode.value()))?;
            (count > 0).then(|| (opcode.name().to_owned(), count))
        };
        Statistics {
            operations: Opcode::ALL.iter().filter_map(count).collect(),
            bytes_read: [inline[0], direct[0]],
            bytes_written: [inline[1], direct[1]],
            bytes_eager: eager,
            bytes_client_initiated: client_initiated,
            ..self.counted.clone()
        }
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
        Method::Eager => 2,
        Method::ClientInitiated => 3,
    }
}
