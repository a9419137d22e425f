//! The lanes of a connection, and operations that use them.
#![allow(clippy::cast_possible_truncation, reason = "lengths within a lane")]

use dafs_proto::transport::{Head, MemoryRef, Region, RemoteRange};
use dafs_proto::wire::{LANE_REQUEST_HEAD_SIZE, LANE_ROOM, lane_frame_data};

/// The lanes of a connection.
#[derive(Debug, Default)]
pub(crate) struct Lanes {
    pub(crate) lanes: Vec<Lane>,
    pub(crate) size: u32,
}

#[derive(Debug)]
pub(crate) struct Lane {
    /// This side's buffer.
    pub(crate) memory: MemoryRef,
    /// As long as it lives, the client reaches the buffer.
    pub(crate) region: Region,
    /// The client's.
    pub(crate) remote: RemoteRange,
}

/// A frame that found the provider's queue full.
#[derive(Debug)]
pub(crate) struct LaneFrame {
    pub(crate) lane: u32,
    pub(crate) from: MemoryRef,
    pub(crate) to: RemoteRange,
}

impl Lanes {
    /// Memory that they take, bytes.
    pub(crate) fn memory_size(&self) -> usize {
        self.lanes.len() * (LANE_ROOM + self.size as usize)
    }

    pub(crate) fn lane(&self, lane: u64) -> Option<&Lane> {
        self.lanes.get(usize::try_from(lane).ok()?)
    }

    /// Where the data of a request is, or goes.
    pub(crate) fn data(&self, lane: u64, len: u32) -> Option<MemoryRef> {
        if len > self.size {
            return None;
        }
        self.lane(lane)?.memory.slice(LANE_ROOM, len as usize)
    }

    /// The head of a frame that the client wrote, copied, and the length of the data behind it.
    pub(crate) fn frame(&self, lane: u32, written: u32) -> Option<(Head, u32)> {
        let lane = self.lane(lane.into())?;
        let data = lane_frame_data(written, LANE_REQUEST_HEAD_SIZE, self.size)?;
        let mut head = [0; LANE_REQUEST_HEAD_SIZE];
        lane.memory.span().read_into(LANE_ROOM - LANE_REQUEST_HEAD_SIZE, &mut head);
        Some((Head::copy_of(&head)?, data as u32))
    }
}
