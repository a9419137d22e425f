use std::ops::Deref;

use smallvec::SmallVec;
use thiserror::Error;

use super::body::{Field, body, field_by_number};
use super::{
    Features, HEADER_SIZE, Method, Opcode, REMOTE_RANGE_SIZE, Reader, Stability, WireError, WireRange,
    Writer, encode_segments,
};
use crate::extent::{Extent, total};

/// Bytes of a file extent on the wire: offset, length.
pub const EXTENT_SIZE: usize = 12;

/// File extents in one request, and ranges of memory.
pub const LIST_MAX: usize = 4096;

/// Whether parts of a list are moved together with what lies between them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Sieve {
    /// Where the server expects that to be quicker.
    #[default]
    Auto,
    /// Wherever it can be.
    On,
    /// Nowhere: what lies between them is neither read nor written.
    Off,
}

impl Sieve {
    /// In the order of their numbers on the wire.
    pub const ALL: [Self; 3] = [Self::Auto, Self::On, Self::Off];

    /// The name in settings and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::On => "on",
            Self::Off => "off",
        }
    }
}

bitflags::bitflags! {
    /// What else is asked of a list.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct ListFlags: u8 {
        /// The reply says how the list was moved: [`Explanation`].
        const EXPLAIN = 0x1;
    }
}

impl ListFlags {
    /// What both sides have to name before these may be set.
    pub const fn feature(self) -> Features {
        match self.contains(Self::EXPLAIN) {
            true => Features::EXPLAIN,
            false => Features::BASE,
        }
    }
}

field_by_number!(ListFlags, u8, |flags| flags.bits(), ListFlags::from_bits);
field_by_number!(Sieve, u8, |sieve| sieve as u8, |number| Sieve::ALL.get(usize::from(number)).copied());

body! {
    /// Body of a read or write of a list, 16 bytes. The payload holds the extents, then the ranges of memory, then the data of an inline
    /// write.
    pub struct ListRequest("list request") {
        /// Bytes: the total of the extents, and of the ranges where there are any.
        pub len: u32 = "list length",
        /// How the data travels.
        pub method: Method = "transfer method",
        /// When written data must be durable; [`Stability::Unstable`] in reads.
        pub stability: Stability = "stability",
        /// What becomes of what lies between the extents.
        pub sieve: Sieve = "sieve",
        /// What else is asked.
        pub flags: ListFlags = "flags of a list",
        /// File extents.
        pub extent_count: u32 = "extent count",
        /// Ranges of client memory: 0 for inline.
        pub segment_count: u32 = "segment count",
    }
}

body! {
    /// Body of the reply to a read of a list, 16 bytes. The data is the payload (inline) or in the client's memory (direct).
    pub struct ListReadReply("list read reply") {
        /// Bytes read, of all extents together. Inline, they follow each other without gaps in the payload.
        pub count: u32 = "read count",
        /// Where the file ended: of each extent that was read which lies before it. `None`: all of the list was read.
        pub end: Option<u64> = "end of file",
    }
}

body! {
    /// How a list was moved, 64 bytes: behind the data of a reply whose request asked for it with [`ListFlags::EXPLAIN`].
    #[derive(Default)]
    pub struct Explanation("explanation") {
        /// Parts: contiguous in the file and in memory.
        pub parts: u32 = "parts",
        /// Of them, those that were copied out of a file in memory, without a call of the file system.
        pub copied: u32 = "parts without a call",
        /// Calls that moved one part or neighbours.
        pub calls: u32 = "calls",
        /// Calls that moved what lies between parts as well.
        pub windows: u32 = "windows",
        /// Of both, those that had to be waited for.
        pub waited: u32 = "calls waited for",
        /// The largest gap that it was worth moving, bytes.
        pub gap_max: u32 = "largest gap",
        /// What a call was expected to take, nanoseconds.
        pub call_ns: u32 = "cost of a call",
        /// What a byte of a window was expected to take, picoseconds.
        pub byte_ps: u32 = "cost of a byte",
        /// Bytes of the windows, gaps included.
        pub window_bytes: u64 = "bytes of windows",
        /// What all calls that were not waited for were expected to take, nanoseconds.
        pub predicted_ns: u64 = "predicted time",
        /// What they would have been expected to take without what lies between parts, nanoseconds.
        pub apart_ns: u64 = "predicted time apart",
        /// What all calls took, nanoseconds.
        pub measured_ns: u64 = "measured time",
    }
}

impl Explanation {
    /// Bytes of it.
    pub const SIZE: usize = Self::HEAD_SIZE - HEADER_SIZE;
}

impl ListRequest {
    /// Reads the body of a request of this opcode: a read has no stability.
    pub fn decode_for(opcode: Opcode, body: &[u8]) -> Result<Self, WireError> {
        let request = Self::decode(body)?;
        request.stability.check(opcode == Opcode::ReadList)?;
        Ok(request)
    }
}

/// Whether there is one, and the number, which is 0 where there is none.
impl Field for Option<u64> {
    const SIZE: usize = 12;

    #[inline]
    fn write(&self, writer: &mut Writer<'_>) {
        writer.u32(u32::from(self.is_some())).u64(self.unwrap_or_default());
    }

    #[inline]
    fn read(reader: &mut Reader<'_>, what: &'static str) -> Result<Self, WireError> {
        match (bool::read(reader, what)?, reader.u64(what)?) {
            (false, 0) => Ok(None),
            (false, value) => Err(WireError::Invalid { what, value }),
            (true, value) => Ok(Some(value)),
        }
    }
}

/// The lists of one request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lists {
    /// Of the file.
    pub extents: Vec<Extent>,
    /// Of the client's memory; none for inline.
    pub segments: Vec<WireRange>,
}

/// As [`Lists`], of which there are many and most of one entry: it needs no memory of its own then.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShortLists {
    /// Of the file.
    pub extents: SmallVec<[Extent; 1]>,
    /// Of the client's memory.
    pub segments: SmallVec<[WireRange; 1]>,
}

impl From<Lists> for ShortLists {
    fn from(lists: Lists) -> Self {
        Self { extents: lists.extents.into(), segments: lists.segments.into() }
    }
}

/// Lists that cannot be carried out. The request is answered `INVALID`, with these words; the session goes on.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ListError {
    /// Too many entries.
    #[error("{count} {what} in one request; the limit is {LIST_MAX}")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// How many were announced.
        count: u32,
    },
    /// An inline request with memory, or a direct one without.
    #[error("{segments} ranges of memory do not go with the method {method}")]
    Method {
        /// How many were announced.
        segments: u32,
        /// The method's name.
        method: &'static str,
    },
    /// The payload does not hold what the counts say.
    #[error("a payload of {found} bytes, where the counts say {expected}")]
    Payload {
        /// Bytes that arrived.
        found: usize,
        /// Bytes announced.
        expected: u64,
    },
    /// An extent beyond the end of any file.
    #[error("an extent lies beyond the end of any file, or the extents together do")]
    Offset,
    /// The totals differ.
    #[error("{what} of {found} bytes in all, where the request says {expected}")]
    Total {
        /// Of what.
        what: &'static str,
        /// Bytes in all.
        found: u128,
        /// The request's length.
        expected: u32,
    },
    /// More than one request may move.
    #[error("a list of {len} bytes in one request; the limit is {limit}")]
    TooLong {
        /// Bytes asked for.
        len: u32,
        /// The limit.
        limit: u32,
    },
}

/// Bytes that lists take in a payload.
#[inline]
pub const fn lists_size(extents: usize, segments: usize) -> usize {
    extents * EXTENT_SIZE + segments * REMOTE_RANGE_SIZE
}

/// Writes lists one after the other; `bytes` holds [`lists_size`] of them. Extents are below 4 GiB.
pub fn encode_lists(extents: impl Iterator<Item = Extent>, segments: &[WireRange], bytes: &mut [u8]) {
    let mut at = 0;
    for extent in extents {
        let len = u32::try_from(extent.len).expect("an extent of a request is below 4 GiB");
        let place = &mut bytes[at..at + EXTENT_SIZE];
        place[..8].copy_from_slice(&extent.offset.to_le_bytes());
        place[8..].copy_from_slice(&len.to_le_bytes());
        at += EXTENT_SIZE;
    }
    encode_segments(segments, &mut bytes[at..]);
}

/// Reads the lists of a request and checks them against it; `inline_len` bytes of data follow them. Nothing is allocated before the counts
/// have been checked.
pub fn decode_lists(payload: &[u8], request: &ListRequest, inline_len: u32) -> Result<Lists, ListError> {
    let (extents, segments) = decode_lists_as::<Vec<Extent>, Vec<WireRange>>(payload, request, inline_len)?;
    Ok(Lists { extents, segments })
}

/// As [`decode_lists`], of an operation within a batch.
pub(super) fn decode_short_lists(payload: &[u8], request: &ListRequest) -> Result<ShortLists, ListError> {
    let (extents, segments) = decode_lists_as(payload, request, 0)?;
    Ok(ShortLists { extents, segments })
}

fn decode_lists_as<E, S>(payload: &[u8], request: &ListRequest, inline_len: u32) -> Result<(E, S), ListError>
where
    E: FromIterator<Extent> + Deref<Target = [Extent]>,
    S: FromIterator<WireRange> + Deref<Target = [WireRange]>,
{
    let memory = Memory { len: request.len, method: request.method, segment_count: request.segment_count };
    let mut reader = reader_of(payload, request.extent_count, &memory, inline_len)?;
    let extents: E = (0..request.extent_count)
        .map(|_| {
            let offset = reader.u64("extent offset").unwrap_or_default();
            let len = reader.u32("extent length").unwrap_or_default();
            Extent::new(offset, u64::from(len))
        })
        .collect();
    let found = u128::from(total(&extents).ok_or(ListError::Offset)?);
    if found != u128::from(request.len) {
        return Err(ListError::Total { what: "extents", found, expected: request.len });
    }
    Ok((extents, memory.ranges(&mut reader)?))
}

/// What a request says of its client's memory.
pub(super) struct Memory {
    pub(super) len: u32,
    pub(super) method: Method,
    pub(super) segment_count: u32,
}

/// Checks counts against the payload, and reads it from its beginning. Nothing is missing then.
fn reader_of<'a>(
    payload: &'a [u8],
    extent_count: u32,
    memory: &Memory,
    inline_len: u32,
) -> Result<Reader<'a>, ListError> {
    let Memory { method, segment_count, .. } = *memory;
    for (what, count) in [("extents", extent_count), ("ranges of memory", segment_count)] {
        if count as usize > LIST_MAX {
            return Err(ListError::TooMany { what, count });
        }
    }
    if !matches!((method, segment_count), (Method::Inline, 0) | (Method::Direct, 1..)) {
        return Err(ListError::Method { segments: segment_count, method: method.name() });
    }
    let lists = lists_size(extent_count as usize, segment_count as usize);
    let expected = lists as u64 + u64::from(inline_len);
    if payload.len() as u64 != expected {
        return Err(ListError::Payload { found: payload.len(), expected });
    }
    Ok(Reader::new(payload))
}

impl Memory {
    fn ranges<S>(&self, reader: &mut Reader<'_>) -> Result<S, ListError>
    where
        S: FromIterator<WireRange> + Deref<Target = [WireRange]>,
    {
        let segments: S = (0..self.segment_count)
            .map(|_| std::array::from_fn(|_| reader.u64("segment").unwrap_or_default()))
            .collect();
        let found: u128 = segments.iter().map(|[_, _, len]| u128::from(*len)).sum();
        if self.method != Method::Inline && found != u128::from(self.len) {
            return Err(ListError::Total { what: "ranges of memory", found, expected: self.len });
        }
        Ok(segments)
    }

    /// Ranges of memory alone, with `inline_len` bytes of data behind them.
    pub(super) fn decode(&self, payload: &[u8], inline_len: u32) -> Result<Vec<WireRange>, ListError> {
        self.ranges(&mut reader_of(payload, 0, self, inline_len)?)
    }
}
