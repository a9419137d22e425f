//! Registrations, kept ones and others, as operations hold them.

use std::sync::{Arc, Mutex, PoisonError};

use dafs_proto::transport::{Access, Region, RegionError, RemoteRange};
use smallvec::SmallVec;

use super::Extent;
use crate::memory::RawMemory;

/// A registration that is kept.
pub(super) struct Kept {
    extent: Extent,
    pub(super) access: Access,
    /// Of memory that was pinned, and is as long as this is kept.
    pub(super) pinned: bool,
    range: RemoteRange,
    region: Mutex<Option<Region>>,
}

/// The use of a kept registration: it does not give way meanwhile.
pub(crate) struct Loan(pub(super) Arc<Kept>);

/// What an operation holds for its registrations.
pub(crate) enum Hold {
    /// Registered for this operation.
    Region(Region),
    /// Kept registration.
    Loan(Loan),
}

/// Memory of an operation, registered.
pub(crate) struct Registered {
    /// For each piece of memory, in order, where the server reaches it.
    pub(crate) ranges: SmallVec<[RemoteRange; 1]>,
    /// Registered as long as these live.
    pub(crate) holds: SmallVec<[Hold; 1]>,
}

impl Registered {
    /// Of one piece.
    pub(super) fn of(memory: &RawMemory, hold: Hold) -> Result<Self, RegionError> {
        let range = hold.range_of(extent_of(memory))?;
        Ok(Self { ranges: SmallVec::from_buf([range]), holds: SmallVec::from_iter([hold]) })
    }
}

impl Kept {
    pub(super) fn new(extent: Extent, access: Access, pinned: bool, region: Region) -> Self {
        Self { extent, access, pinned, range: region.range(), region: Mutex::new(Some(region)) }
    }
}

impl Loan {
    /// Where the server reaches a part of what is registered.
    pub(crate) fn range_of(&self, memory: &RawMemory) -> Option<RemoteRange> {
        self.range(extent_of(memory))
    }

    fn range(&self, extent: Extent) -> Option<RemoteRange> {
        let offset = extent.start.checked_sub(self.0.extent.start)?;
        self.0.range.slice(offset as u64, extent.len() as u64)
    }

    /// The cache has it too, or another operation: else it ends with this one.
    pub(super) fn is_shared(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    /// Ends the registration, for everybody: afterwards no peer reaches the memory.
    pub(crate) fn revoke(&self) {
        drop(self.0.region.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
}

impl Hold {
    pub(super) fn range_of(&self, extent: Extent) -> Result<RemoteRange, RegionError> {
        let range = match self {
            Self::Loan(loan) => loan.range(extent),
            Self::Region(region) => {
                let start = region.memory().span().as_ptr() as usize;
                let offset = extent.start.checked_sub(start);
                offset.and_then(|offset| region.range().slice(offset as u64, extent.len() as u64))
            }
        };
        range.ok_or(RegionError::System {
            what: "find memory among what was registered",
            source: std::io::ErrorKind::InvalidInput.into(),
        })
    }

    /// Ends the registration: afterwards no peer reaches the memory.
    pub(crate) fn revoke(self) {
        match self {
            Self::Region(region) => drop(region),
            Self::Loan(loan) => loan.revoke(),
        }
    }
}

pub(super) fn extent_of(memory: &RawMemory) -> Extent {
    Extent::new(memory.address(), memory.len())
}
