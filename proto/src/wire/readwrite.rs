use super::body::{body, field_by_number};
use super::{Reader, WireError, Writer};

/// Bytes of a remote range on the wire: key, offset, length.
pub const REMOTE_RANGE_SIZE: usize = 24;

/// Memory segments in one request.
pub const SEGMENTS_MAX: usize = 256;

/// How the data of a request travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Method {
    /// In the payload of the request or the reply.
    Inline,
    /// By RDMA that the server starts, into or out of the client's registered memory.
    Direct,
    /// In a frame in an eager buffer: a write's request with its data, or a read's reply, written by RDMA with immediate.
    Eager,
    /// By RDMA that the client starts, into or out of the server's side of an eager buffer.
    ClientInitiated,
}

impl Method {
    /// In the order of their numbers on the wire.
    const ALL: [Self; 4] = [Self::Inline, Self::Direct, Self::Eager, Self::ClientInitiated];

    /// The name in settings and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Inline => "inline",
            Self::Direct => "direct",
            Self::Eager => "eager",
            Self::ClientInitiated => "client-initiated",
        }
    }

    /// The data passes through an eager buffer, which the range's key names; there is no range.
    pub fn uses_eager_buffer(self) -> bool {
        matches!(self, Self::Eager | Self::ClientInitiated)
    }
}

field_by_number!(Method, u8, |method| method as u8, |number| Method::ALL.get(usize::from(number)).copied());

/// When written data must be durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
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
    /// In the order of their numbers on the wire.
    const ALL: [Self; 3] = [Self::Unstable, Self::DataSync, Self::FileSync];

    /// A read has none.
    #[inline]
    pub(super) fn check(self, is_read: bool) -> Result<(), WireError> {
        if is_read && self != Self::Unstable {
            return Err(WireError::Invalid { what: "stability of a read", value: self as u64 });
        }
        Ok(())
    }
}

field_by_number!(Stability, u8, |stability| stability as u8, |number| {
    Stability::ALL.get(usize::from(number)).copied()
});

/// Changes when unstable writes acknowledged before may have been lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Verifier(pub u64);

field_by_number!(Verifier, u64, |verifier| verifier.0, |number| Some(Verifier(number)));

/// A range of the client's registered memory, on the wire. The provider's type is made of the same three numbers.
pub type WireRange = [u64; 3];

body! {
    /// Body of a read, 40 bytes. With `segment_count` above 1, the ranges are in the payload and `segment` is zero.
    pub struct ReadRequest("read request") {
        /// First byte of the file.
        pub offset: u64 = "read offset",
        /// Bytes.
        pub len: u32 = "read length",
        /// How the data travels.
        pub method: Method = "transfer method" and 1 reserved,
        /// Ranges of client memory: 0 for inline.
        pub segment_count: u16 = "segment count",
        /// The only range, where there is one.
        pub segment: WireRange = "segment",
    }
    check |request| check_segments(request.segment_count, request.method, &request.segment)
}

body! {
    /// Body of a read's reply, 8 bytes. The data is the payload (inline) or in the client's memory (direct).
    pub struct ReadReply("read reply") {
        /// Bytes read; fewer than asked for only at the end of the file.
        pub count: u32 = "read count",
        /// The read reached the end of the file.
        pub end_of_file: bool = "end of file",
    }
}

body! {
    /// Body of a write or an append, 40 bytes. An append's `offset` is zero.
    pub struct WriteRequest("write request") {
        /// First byte of the file.
        pub offset: u64 = "write offset",
        /// Bytes.
        pub len: u32 = "write length",
        /// How the data travels.
        pub method: Method = "transfer method",
        /// When it must be durable.
        pub stability: Stability = "stability",
        /// Ranges of client memory: 0 for inline.
        pub segment_count: u16 = "segment count",
        /// The only range, where there is one.
        pub segment: WireRange = "segment",
    }
    check |request| check_segments(request.segment_count, request.method, &request.segment)
}

body! {
    /// Body of the reply to a write or an append, 24 bytes.
    pub struct WriteReply("write reply") {
        /// Where the data was written: what an append asked for.
        pub offset: u64 = "write offset",
        /// Bytes written: fewer than asked for only when an error came after them.
        pub count: u32 = "write count",
        /// How durable they are: at least what was asked for.
        pub stability: Stability = "stability" and 3 reserved,
        /// For unstable data: compare with that of the commit.
        pub verifier: Verifier = "verifier",
    }
}

body! {
    /// Body of a commit, 24 bytes.
    pub struct CommitRequest("commit request") {
        /// First byte to make durable.
        pub offset: u64 = "commit offset",
        /// Bytes; 0 for all that follow.
        pub len: u64 = "commit length",
        /// [`Stability::DataSync`] or [`Stability::FileSync`].
        pub stability: Stability = "stability" and 7 reserved,
    }
    check |request| match request.stability {
        Stability::Unstable => Err(WireError::Invalid { what: "stability of a commit", value: 0 }),
        Stability::DataSync | Stability::FileSync => Ok(()),
    }
}

body! {
    /// Body of a commit's reply, 8 bytes.
    pub struct CommitReply("commit reply") {
        /// Unstable writes answered with this verifier are durable now; those with another may be lost.
        pub verifier: Verifier = "verifier",
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
fn check_segments(count: u16, method: Method, segment: &WireRange) -> Result<(), WireError> {
    if usize::from(count) > SEGMENTS_MAX {
        return Err(WireError::Invalid { what: "segment count", value: u64::from(count) });
    }
    if (count == 0) != (method != Method::Direct) {
        return Err(WireError::Invalid { what: "segment count for the method", value: u64::from(count) });
    }
    let unused = match (method, count) {
        (Method::Direct, 1) => &[],
        (Method::Inline | Method::Direct, _) => &segment[..],
        // The first names the eager buffer.
        (Method::Eager | Method::ClientInitiated, _) => &segment[1..],
    };
    if let Some(value) = unused.iter().copied().find(|number| *number != 0) {
        return Err(WireError::Invalid { what: "range of a request that has none in its body", value });
    }
    Ok(())
}
