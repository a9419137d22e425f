use std::borrow::Cow;

use thiserror::Error;

/// What cannot be a layout.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum LayoutError {
    /// A block of a datatype has fewer than no bytes.
    #[error("block {index} of a datatype has {len} bytes")]
    Len {
        /// Which.
        index: usize,
        /// What it claims, bytes.
        len: i64,
    },
    /// A datatype has more bytes than there are addresses.
    #[error("a datatype has too many bytes")]
    Size,
    /// A byte would lie before the first of the file or beyond the last that a file can have.
    #[error("byte {position} of the view lies outside of any file")]
    Offset {
        /// Bytes of the view's data before it.
        position: u64,
    },
    /// A byte would lie at no address.
    #[error("byte {position} of the buffer lies at no address")]
    Address {
        /// Bytes of the buffer's data before it.
        position: u64,
    },
    /// The view has no bytes, and some are to be moved.
    #[error("the view has no bytes")]
    EmptyView,
}

/// A flattened datatype: blocks in the order of its typemap. Blocks without bytes (bound markers) hold none.
#[derive(Clone, Debug)]
pub struct Type<'a> {
    offsets: Cow<'a, [i64]>,
    lens: Cow<'a, [i64]>,
    /// From one instance to the next, bytes.
    extent: i64,
    /// Bytes of all blocks.
    size: u64,
    /// Where instances follow each other without a gap: the offset of the one block that has bytes.
    dense: Option<i64>,
}

impl<'a> Type<'a> {
    /// A type of these blocks; `lens` has as many as `offsets`, or what is more is left out.
    ///
    /// # Errors
    /// [`LayoutError::Len`] and [`LayoutError::Size`].
    pub fn new(
        offsets: impl Into<Cow<'a, [i64]>>,
        lens: impl Into<Cow<'a, [i64]>>,
        extent: i64,
    ) -> Result<Self, LayoutError> {
        let (offsets, lens) = (offsets.into(), lens.into());
        let mut size = 0u64;
        let mut with_bytes = None;
        let mut blocks = 0;
        for (index, (offset, len)) in offsets.iter().zip(lens.iter()).enumerate() {
            let bytes = u64::try_from(*len).map_err(|_| LayoutError::Len { index, len: *len })?;
            size =
                size.checked_add(bytes).filter(|size| *size <= i64::MAX as u64).ok_or(LayoutError::Size)?;
            if bytes > 0 {
                with_bytes = Some(*offset);
                blocks += 1;
            }
        }
        let dense = with_bytes.filter(|_| blocks == 1 && i64::try_from(size) == Ok(extent));
        Ok(Self { offsets, lens, extent, size, dense })
    }

    /// A type of so many bytes in one block.
    pub fn contiguous(len: u64) -> Result<Self, LayoutError> {
        let len = i64::try_from(len).map_err(|_| LayoutError::Size)?;
        Self::new(vec![0], vec![len], len)
    }

    /// Bytes of one instance.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// From one instance to the next, bytes.
    pub fn extent(&self) -> i64 {
        self.extent
    }

    /// It has the same blocks in the same order, and the same extent.
    pub fn is_same(&self, other: &Type<'_>) -> bool {
        self.extent == other.extent
            && self.len() == other.len()
            && self.offsets[..self.len()] == other.offsets[..other.len()]
            && self.lens[..self.len()] == other.lens[..other.len()]
    }

    /// The same, without copying its blocks.
    pub fn borrowed(&self) -> Type<'_> {
        Type {
            offsets: Cow::Borrowed(&self.offsets),
            lens: Cow::Borrowed(&self.lens),
            extent: self.extent,
            size: self.size,
            dense: self.dense,
        }
    }

    /// The same with blocks of its own.
    pub fn into_owned(self) -> Type<'static> {
        Type {
            offsets: Cow::Owned(self.offsets.into_owned()),
            lens: Cow::Owned(self.lens.into_owned()),
            extent: self.extent,
            size: self.size,
            dense: self.dense,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.offsets.len().min(self.lens.len())
    }

    /// Block `index`: its offset and its bytes.
    pub(super) fn block(&self, index: usize) -> (i64, u64) {
        // Checked when the type was made.
        (self.offsets[index], self.lens[index].unsigned_abs())
    }
}

/// The address at an offset from a base. The base need not be an address: with `MPI_BOTTOM` offsets are addresses, and memory that stands
/// in for that begins a number of bytes below 0.
pub(super) fn address_of(base: usize, at: i64) -> Option<usize> {
    let address = base.cast_signed().checked_add(isize::try_from(at).ok()?)?;
    usize::try_from(address).ok()
}

/// Instances of a type in memory, from an address on.
#[derive(Clone, Debug)]
pub struct Instances<'a> {
    /// The address that offsets count from.
    pub base: usize,
    /// How many.
    pub count: u64,
    /// Of what.
    pub of: Type<'a>,
}

impl Instances<'_> {
    /// Bytes of all of them.
    pub fn size(&self) -> Result<u64, LayoutError> {
        self.of.size.checked_mul(self.count).filter(|size| *size <= i64::MAX as u64).ok_or(LayoutError::Size)
    }
}

/// What a process sees of a file: instances of a type without end, from a displacement on.
#[derive(Clone, Debug)]
pub struct View<'a> {
    /// Where the first instance begins, bytes.
    pub displacement: u64,
    /// Of what.
    pub of: Type<'a>,
}

impl View<'_> {
    /// Bytes of data before byte `offset` of the file; from a byte in a gap, those before the next data.
    ///
    /// Types whose blocks ascend, as MPI demands of file types.
    pub fn position_of(&self, offset: u64) -> u64 {
        let Some(behind) = offset.checked_sub(self.displacement) else { return 0 };
        let behind = i64::try_from(behind).unwrap_or(i64::MAX);
        let of = &self.of;
        if let Some(start) = of.dense {
            return u64::try_from(behind.saturating_sub(start)).unwrap_or(0);
        }
        if of.size == 0 || of.extent <= 0 {
            return 0;
        }
        let (behind, extent) = (i128::from(behind), i128::from(of.extent));
        let blocks = || {
            let with_bytes = (0..of.len()).map(|index| of.block(index)).filter(|(_, len)| *len > 0);
            with_bytes.map(|(start, len)| (i128::from(start), i128::from(len)))
        };
        // The first instances lie before the byte as a whole. Of the others each block counts for itself: it may lie far from its instance.
        let end = blocks().map(|(start, len)| start + len).max().unwrap_or(0);
        let first = ((behind - end).div_euclid(extent) + 1).max(0);
        let reach = behind - first * extent;
        let of_others = blocks().map(|(start, len)| bytes_before(reach - start, len, extent));
        let before = of_others.fold(first.saturating_mul(of.size.into()), i128::saturating_add);
        u64::try_from(before).unwrap_or(u64::MAX)
    }

    /// The byte of the file where the data after `position` bytes begins.
    pub fn offset_of(&self, position: u64) -> Result<u64, LayoutError> {
        if self.of.size == 0 {
            return Err(LayoutError::EmptyView);
        }
        let mut cursor = Cursor::at(&self.of, position);
        let (offset, _) = cursor.run(&self.of, 1).ok_or(LayoutError::Offset { position })?;
        self.absolute(offset, position)
    }

    /// A byte of the file, by its distance from the displacement.
    pub(super) fn absolute(&self, relative: i64, position: u64) -> Result<u64, LayoutError> {
        let offset = self.displacement.checked_add_signed(relative);
        offset.filter(|offset| *offset <= i64::MAX as u64).ok_or(LayoutError::Offset { position })
    }
}

/// Bytes of a block and of the same block of the instances that follow, which lie in the first `reach` bytes from where it begins.
fn bytes_before(reach: i128, len: i128, extent: i128) -> i128 {
    if reach <= extent {
        return reach.clamp(0, len);
    }
    let whole = ((reach - len).div_euclid(extent) + 1).max(0);
    // So much of the next one; of each that follows less by an extent.
    let left = reach - whole * extent;
    let cut = ((left - 1).div_euclid(extent) + 1).max(0);
    whole * len + cut * left - extent * (cut * (cut - 1) / 2)
}

/// A place in instances of a type.
#[derive(Clone, Debug, Default)]
pub(super) struct Cursor {
    instance: u64,
    block: usize,
    within: u64,
}

impl Cursor {
    /// Behind the first `position` bytes; before a block, not at the end of the one before it. The type has bytes, or `position` is 0.
    pub(super) fn at(of: &Type<'_>, position: u64) -> Self {
        if of.dense.is_some() || of.size == 0 {
            return Self { instance: 0, block: 0, within: position };
        }
        let mut cursor = Self { instance: position / of.size, block: 0, within: position % of.size };
        while cursor.within > 0 && cursor.within >= of.block(cursor.block).1 {
            cursor.within -= of.block(cursor.block).1;
            cursor.block += 1;
        }
        cursor
    }

    /// The next bytes that lie together, `max` at most: where they lie, and how many. `None` where that is beyond all numbers.
    pub(super) fn run(&mut self, of: &Type<'_>, max: u64) -> Option<(i64, u64)> {
        if let Some(start) = of.dense {
            let offset = start.checked_add(i64::try_from(self.within).ok()?)?;
            self.within = self.within.checked_add(max)?.min(i64::MAX as u64);
            return Some((offset, max));
        }
        loop {
            if self.block == of.len() {
                (self.block, self.instance) = (0, self.instance.checked_add(1)?);
            }
            let (start, len) = of.block(self.block);
            if len > self.within {
                let instance = i64::try_from(self.instance).ok()?.checked_mul(of.extent)?;
                let offset = instance.checked_add(start)?.checked_add(i64::try_from(self.within).ok()?)?;
                let len = (len - self.within).min(max);
                self.within += len;
                return Some((offset, len));
            }
            (self.block, self.within) = (self.block + 1, 0);
        }
    }

    /// Gives back the last bytes of a run.
    pub(super) fn back(&mut self, len: u64) {
        self.within -= len;
    }
}
