use super::{Reader, WireError, Writer};
use crate::wire::HEADER_SIZE;

/// Bytes of a remote range on the wire: key, offset, length.
pub const REMOTE_RANGE_SIZE: usize = 24;

/// Memory segments in one request.
pub const SEGMENTS_MAX: usize = 256;

/// How the data of a request travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Method {
    /// In the payload of the request or the reply.
    Inline,
    /// By RDMA that the server starts, into or out of the client's registered memory.
    Direct,
    /// In a frame in a lane: a write's request with its data, or a read's reply, written by RDMA with immediate.
    Fast,
    /// By RDMA that the client starts, into or out of the server's side of a lane.
    Client,
}

impl Method {
    pub(super) fn value(self) -> u8 {
        match self {
            Self::Inline => 0,
            Self::Direct => 1,
            Self::Fast => 2,
            Self::Client => 3,
        }
    }

    pub(super) fn from_value(value: u8) -> Result<Self, WireError> {
        match value {
            0 => Ok(Self::Inline),
            1 => Ok(Self::Direct),
            2 => Ok(Self::Fast),
            3 => Ok(Self::Client),
            _ => Err(WireError::Invalid { what: "transfer method", value: u64::from(value) }),
        }
    }

    /// The name in settings and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Inline => "inline",
            Self::Direct => "direct",
            Self::Fast => "fast",
            Self::Client => "client",
        }
    }

    /// The data passes through a lane, which the range's key names; there is no range.
    pub fn uses_lane(self) -> bool {
        matches!(self, Self::Fast | Self::Client)
    }
}

/// When written data must be durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stability {
    /// By the next commit. A changed [`Verifier`] tells that it may have been lost.
    #[default]
    Unstable,
    /// Before the reply: the data and what is needed to read it.
    DataSync,
    /// Before the reply: the data and all attributes.
    FileSync,
}

impl Stability {
    /// The number on the wire.
    pub fn value(self) -> u8 {
        match self {
            Self::Unstable => 0,
            Self::DataSync => 1,
            Self::FileSync => 2,
        }
    }

    /// The stability with this number.
    pub fn from_value(value: u8) -> Result<Self, WireError> {
        match value {
            0 => Ok(Self::Unstable),
            1 => Ok(Self::DataSync),
            2 => Ok(Self::FileSync),
            _ => Err(WireError::Invalid { what: "stability", value: u64::from(value) }),
        }
    }
}

/// Changes when unstable writes acknowledged before may have been lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Verifier(pub u64);

/// A range of the client's registered memory, on the wire. The provider's type is made of the same three numbers.
pub type WireRange = [u64; 3];

/// Body of a read, 40 bytes. With `segment_count` above 1, the ranges are in the payload and `segment` is zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadRequest {
    /// First byte of the file.
    pub offset: u64,
    /// Bytes.
    pub len: u32,
    /// How the data travels.
    pub method: Method,
    /// Ranges of client memory: 0 for inline.
    pub segment_count: u16,
    /// The only range, where there is one.
    pub segment: WireRange,
}

/// Bytes of a [`ReadRequest`].
const READ_REQUEST_SIZE: usize = 40;

impl ReadRequest {
    /// Bytes of the head.
    pub const HEAD_SIZE: usize = HEADER_SIZE + READ_REQUEST_SIZE;

    /// Writes the body.
    #[inline]
    pub fn encode(&self, body: &mut [u8]) {
        let mut writer = Writer::new(body);
        writer.u64(self.offset).u32(self.len).u8(self.method.value()).reserved(1).u16(self.segment_count);
        for word in self.segment {
            writer.u64(word);
        }
    }

    /// Reads the body.
    #[inline]
    pub fn decode(body: &[u8]) -> Result<Self, WireError> {
        let mut reader = Reader::new(body);
        let offset = reader.u64("read offset")?;
        let len = reader.u32("read length")?;
        let method = Method::from_value(reader.u8("transfer method")?)?;
        reader.reserved("reserved read byte", 1)?;
        let segment_count = segment_count(&mut reader, method)?;
        let segment =
            [reader.u64("segment key")?, reader.u64("segment offset")?, reader.u64("segment length")?];
        reader.finish("read request")?;
        Ok(Self { offset, len, method, segment_count, segment })
    }
}

/// Body of a read's reply, 8 bytes. The data is the payload (inline) or in the client's memory (direct).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadReply {
    /// Bytes read; fewer than asked for only at the end of the file.
    pub count: u32,
    /// The read reached the end of the file.
    pub end_of_file: bool,
}

impl ReadReply {
    /// Bytes of the head.
    pub const HEAD_SIZE: usize = HEADER_SIZE + 8;

    /// Writes the body.
    #[inline]
    pub fn encode(&self, body: &mut [u8]) {
        Writer::new(body).u32(self.count).u32(u32::from(self.end_of_file));
    }

    /// Reads the body.
    #[inline]
    pub fn decode(body: &[u8]) -> Result<Self, WireError> {
        let mut reader = Reader::new(body);
        let reply = Self {
            count: reader.u32("read count")?,
            end_of_file: match reader.u32("end of file")? {
                0 => false,
                1 => true,
                value => return Err(WireError::Invalid { what: "end of file", value: u64::from(value) }),
            },
        };
        reader.finish("read reply")?;
        Ok(reply)
    }
}

/// Body of a write or an append, 40 bytes. An append's `offset` is zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteRequest {
    /// First byte of the file.
    pub offset: u64,
    /// Bytes.
    pub len: u32,
    /// How the data travels.
    pub method: Method,
    /// When it must be durable.
    pub stability: Stability,
    /// Ranges of client memory: 0 for inline.
    pub segment_count: u16,
    /// The only range, where there is one.
    pub segment: WireRange,
}

impl WriteRequest {
    /// Bytes of the head.
    pub const HEAD_SIZE: usize = HEADER_SIZE + 40;

    /// Writes the body.
    #[inline]
    pub fn encode(&self, body: &mut [u8]) {
        let mut writer = Writer::new(body);
        writer
            .u64(self.offset)
            .u32(self.len)
            .u8(self.method.value())
            .u8(self.stability.value())
            .u16(self.segment_count);
        for word in self.segment {
            writer.u64(word);
        }
    }

    /// Reads the body.
    #[inline]
    pub fn decode(body: &[u8]) -> Result<Self, WireError> {
        let mut reader = Reader::new(body);
        let offset = reader.u64("write offset")?;
        let len = reader.u32("write length")?;
        let method = Method::from_value(reader.u8("transfer method")?)?;
        let stability = Stability::from_value(reader.u8("stability")?)?;
        let segment_count = segment_count(&mut reader, method)?;
        let segment =
            [reader.u64("segment key")?, reader.u64("segment offset")?, reader.u64("segment length")?];
        reader.finish("write request")?;
        Ok(Self { offset, len, method, stability, segment_count, segment })
    }
}

/// Body of the reply to a write or an append, 24 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteReply {
    /// Where the data was written: what an append asked for.
    pub offset: u64,
    /// Bytes written: fewer than asked for only when an error came after them.
    pub count: u32,
    /// How durable they are: at least what was asked for.
    pub stability: Stability,
    /// For unstable data: compare with that of the commit.
    pub verifier: Verifier,
}

impl WriteReply {
    /// Bytes of the head.
    pub const HEAD_SIZE: usize = HEADER_SIZE + 24;

    /// Writes the body.
    #[inline]
    pub fn encode(&self, body: &mut [u8]) {
        Writer::new(body)
            .u64(self.offset)
            .u32(self.count)
            .u8(self.stability.value())
            .reserved(3)
            .u64(self.verifier.0);
    }

    /// Reads the body.
    #[inline]
    pub fn decode(body: &[u8]) -> Result<Self, WireError> {
        let mut reader = Reader::new(body);
        let offset = reader.u64("write offset")?;
        let count = reader.u32("write count")?;
        let stability = Stability::from_value(reader.u8("stability")?)?;
        reader.reserved("reserved write reply bytes", 3)?;
        let verifier = Verifier(reader.u64("verifier")?);
        reader.finish("write reply")?;
        Ok(Self { offset, count, stability, verifier })
    }
}

/// Body of a commit, 24 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommitRequest {
    /// First byte to make durable.
    pub offset: u64,
    /// Bytes; 0 for all that follow.
    pub len: u64,
    /// [`Stability::DataSync`] or [`Stability::FileSync`].
    pub stability: Stability,
}

impl CommitRequest {
    /// Bytes of the head.
    pub const HEAD_SIZE: usize = HEADER_SIZE + 24;

    /// Writes the body.
    pub fn encode(&self, body: &mut [u8]) {
        Writer::new(body).u64(self.offset).u64(self.len).u8(self.stability.value()).reserved(7);
    }

    /// Reads the body.
    pub fn decode(body: &[u8]) -> Result<Self, WireError> {
        let mut reader = Reader::new(body);
        let offset = reader.u64("commit offset")?;
        let len = reader.u64("commit length")?;
        let stability = Stability::from_value(reader.u8("stability")?)?;
        if stability == Stability::Unstable {
            return Err(WireError::Invalid { what: "stability of a commit", value: 0 });
        }
        reader.reserved("reserved commit bytes", 7)?;
        reader.finish("commit request")?;
        Ok(Self { offset, len, stability })
    }
}

/// Body of a commit's reply, 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommitReply {
    /// Unstable writes answered with this verifier are durable now; those with another may be lost.
    pub verifier: Verifier,
}

impl CommitReply {
    /// Bytes of the head.
    pub const HEAD_SIZE: usize = HEADER_SIZE + 8;

    /// Writes the body.
    pub fn encode(&self, body: &mut [u8]) {
        Writer::new(body).u64(self.verifier.0);
    }

    /// Reads the body.
    pub fn decode(body: &[u8]) -> Result<Self, WireError> {
        let mut reader = Reader::new(body);
        let reply = Self { verifier: Verifier(reader.u64("verifier")?) };
        reader.finish("commit reply")?;
        Ok(reply)
    }
}

/// Writes ranges one after the other; `bytes` holds [`REMOTE_RANGE_SIZE`] for each.
pub fn encode_segments(segments: &[WireRange], bytes: &mut [u8]) {
    let places = bytes.chunks_exact_mut(REMOTE_RANGE_SIZE);
    assert!(places.len() >= segments.len(), "the caller made room for all ranges");
    for ([key, offset, len], place) in segments.iter().zip(places) {
        Writer::new(place).u64(*key).u64(*offset).u64(*len);
    }
}

/// Reads the ranges of a payload that holds exactly `count`.
pub fn decode_segments(payload: &[u8], count: u16) -> Result<Vec<WireRange>, WireError> {
    let (segments, rest) = payload.as_chunks::<REMOTE_RANGE_SIZE>();
    if segments.len() == usize::from(count) && rest.is_empty() {
        // One pass without a check for each number: lists are long.
        let number = |bytes: &[u8; REMOTE_RANGE_SIZE], at: usize| {
            let mut number = [0; 8];
            number.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(number)
        };
        return Ok(segments.iter().map(|bytes| [0, 8, 16].map(|at| number(bytes, at))).collect());
    }
    // Too long, or too short: which number is missing.
    let mut reader = Reader::new(payload);
    for _ in 0..count {
        for what in ["segment key", "segment offset", "segment length"] {
            reader.u64(what)?;
        }
    }
    reader.finish("segments")?;
    Ok(Vec::new())
}

#[inline]
fn segment_count(reader: &mut Reader<'_>, method: Method) -> Result<u16, WireError> {
    let count = reader.u16("segment count")?;
    if usize::from(count) > SEGMENTS_MAX {
        return Err(WireError::TooLarge {
            what: "segment count",
            value: u64::from(count),
            limit: SEGMENTS_MAX as u64,
        });
    }
    if (count == 0) != (method != Method::Direct) {
        return Err(WireError::Invalid { what: "segment count for the method", value: u64::from(count) });
    }
    Ok(count)
}
