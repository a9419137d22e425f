use dafs_client::{Block, Datatype, VIEW_NODES_MAX};

use super::group::{MemoryPart, Stretch, cut_memory};
use super::types::{Cursor, Instances, LayoutError, Type, address_of};

/// The memory of a transfer, piece by piece.
#[derive(Clone, Debug)]
pub struct Pieces<'a> {
    memory: Instances<'a>,
    cursor: Cursor,
    done: u64,
    size: u64,
}

/// Some pieces of memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PieceGroup {
    /// What touches is one.
    pub memory: Vec<MemoryPart>,
    /// Bytes of all of them.
    pub len: u64,
    /// Bytes of the transfer before them.
    pub position: u64,
}

impl Stretch for PieceGroup {
    fn size(&self) -> u64 {
        self.len
    }

    fn advance(&mut self, moved: u64) {
        cut_memory(&mut self.memory, moved);
        (self.position, self.len) = (self.position + moved, self.len - moved);
    }
}

impl<'a> Pieces<'a> {
    /// From the beginning.
    pub fn new(memory: Instances<'a>) -> Result<Self, LayoutError> {
        let size = memory.size()?;
        Ok(Self { cursor: Cursor::at(&memory.of, 0), memory, done: 0, size })
    }

    /// Bytes of all of it.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The next pieces, as many as the limits allow; `None` at the end.
    pub fn next_group(&mut self, pieces_max: usize, len_max: u64) -> Option<Result<PieceGroup, LayoutError>> {
        let mut group = PieceGroup { position: self.done, ..PieceGroup::default() };
        while group.memory.len() < pieces_max && group.len < len_max && self.done < self.size {
            let max = (self.size - self.done).min(len_max - group.len);
            let no_address = LayoutError::Address { position: self.done };
            let Some((at, len)) = self.cursor.run(&self.memory.of, max) else { return Some(Err(no_address)) };
            let address = address_of(self.memory.base, at);
            let bytes = usize::try_from(len).ok();
            let Some((address, bytes)) =
                address.zip(bytes).filter(|(address, bytes)| address.checked_add(*bytes).is_some())
            else {
                return Some(Err(no_address));
            };
            match group.memory.last_mut() {
                Some(last) if last.address + last.len == address => last.len += bytes,
                _ => group.memory.push(MemoryPart { address, len: bytes }),
            }
            group.len += len;
            self.done += len;
        }
        (group.len > 0).then_some(Ok(group))
    }
}

impl Type<'_> {
    /// What a server is told of it: runs of equal blocks at equal distances are one entry, so that most types take a few. Where that takes
    /// more room, or more nodes than there may be, there are as many entries as blocks.
    pub fn datatype(&self) -> Datatype {
        let mut runs: Vec<Run> = Vec::new();
        let mut blocks = 0usize;
        for (offset, len) in self.blocks() {
            blocks += 1;
            if !runs.last_mut().is_some_and(|run| run.takes(offset, len)) {
                runs.push(Run { offset, len, count: 1, stride: 0 });
            }
        }
        // Around the runs there are two nodes more.
        let fits = runs.len() <= (VIEW_NODES_MAX - 2) / RUN_NODES;
        let is_smaller = runs.len().saturating_mul(RUN_SIZE) < blocks.saturating_mul(BLOCK_SIZE);
        let datatype = match &runs[..] {
            [run] => run.datatype(),
            _ if fits && is_smaller => {
                let parts: Vec<Datatype> = runs.iter().map(Run::datatype).collect();
                Datatype::structure(&parts.iter().map(|part| (1, 0, part)).collect::<Vec<_>>())
            }
            _ => {
                let block = |(displacement, len)| Block { len, displacement };
                Datatype::bytes(1).hindexed(&self.blocks().map(block).collect::<Vec<_>>())
            }
        };
        datatype.resized(0, self.extent())
    }

    /// Those that have bytes: offset and length.
    fn blocks(&self) -> impl Iterator<Item = (i64, u64)> + '_ {
        (0..self.len()).map(|index| self.block(index)).filter(|(_, len)| *len > 0)
    }
}

/// Nodes of a description that a run takes, and bytes.
const RUN_NODES: usize = 3;
const RUN_SIZE: usize = 120;
/// Bytes of a description that a block takes.
const BLOCK_SIZE: usize = 16;

/// Blocks of one length at equal distances.
struct Run {
    offset: i64,
    len: u64,
    count: u64,
    stride: i64,
}

impl Run {
    /// The block goes on with the run.
    fn takes(&mut self, offset: i64, len: u64) -> bool {
        let Some(distance) = offset.checked_sub(self.offset).filter(|_| len == self.len) else {
            return false;
        };
        let last = i64::try_from(self.count - 1).ok().and_then(|last| last.checked_mul(self.stride));
        let goes_on = match (self.count, last) {
            (1, _) => true,
            (_, Some(last)) => last.checked_add(self.stride) == Some(distance),
            (_, None) => false,
        };
        if goes_on {
            (self.count, self.stride) =
                (self.count + 1, if self.count == 1 { distance } else { self.stride });
        }
        goes_on
    }

    fn datatype(&self) -> Datatype {
        let blocks = Datatype::bytes(self.len).hvector(self.count, 1, self.stride);
        blocks.hindexed(&[Block { len: 1, displacement: self.offset }])
    }
}
