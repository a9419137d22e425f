//! Batches: many independent reads and writes in one request (DAFS 1.0, batch I/O).

use thiserror::Error;

use super::body::{Field, body, field_by_number};
use super::{
    FileHandle, LIST_MAX, ListError, ListFlags, ListRequest, Method, Reader, ShortLists, Sieve, Stability,
    Status, WireError, Writer, encode_lists, list::decode_short_lists, lists_size,
};

/// Operations in one batch.
pub const BATCH_MAX: usize = 1024;

/// Bytes of an operation in the payload, before its extents and ranges.
pub const BATCH_OPERATION_SIZE: usize = 24;

/// Bytes of a result.
pub const BATCH_RESULT_SIZE: usize = 16;

/// Bytes of a result in a notice: its operation's place in the batch, and the result.
pub const BATCH_NOTICE_RESULT_SIZE: usize = 24;

bitflags::bitflags! {
    /// How a batch is to be answered.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct BatchFlags: u32 {
        /// Ends are told by notices while the others run.
        const NOTIFY = 0x1;
        /// Nothing is gathered: every end is told as soon as can be. Without operations: those of all batches of the session.
        const EXPEDITE = 0x2;
    }
}

field_by_number!(BatchFlags, u32, |flags| flags.bits(), BatchFlags::from_bits);

body! {
    /// Body of a batch, 24 bytes. The payload holds its operations, then the data of those that write inline, in their order.
    #[derive(Default)]
    pub struct BatchRequest("batch") {
        /// Operations in the payload, at most [`BATCH_MAX`].
        pub operations: u32 = "operations of a batch",
        /// How it is to be answered.
        pub flags: BatchFlags = "flags of a batch",
        /// A hint for notices: microseconds that an end may wait for others. 0 without [`BatchFlags::NOTIFY`].
        pub window_us: u32 = "window of a batch",
        /// A hint for notices: ends in one, or all that there are where it is 0. 0 without [`BatchFlags::NOTIFY`].
        pub completions: u32 = "completions of a batch",
        /// Bytes of data behind the operations.
        pub data: u32 = "data of a batch" and 4 reserved,
    }
    check |batch| match u64::from(batch.window_us | batch.completions) {
        value @ 1.. if !batch.flags.contains(BatchFlags::NOTIFY) => {
            Err(WireError::Invalid { what: "hints of a batch without notices", value })
        }
        _ => Ok(()),
    }
}

impl BatchRequest {
    /// Bytes of a payload of so many that describe the operations: the data lies behind them.
    pub fn described_len(&self, payload_len: usize) -> Result<usize, BatchError> {
        let data = self.data as usize;
        payload_len
            .checked_sub(data)
            .ok_or(BatchError::Data { announced: self.data, found: payload_len as u64 })
    }
}

/// One operation of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchOperation {
    /// The file; [`super::CHAIN_HANDLE`] for that of the request's header.
    pub handle: FileHandle,
    /// It writes; else it reads.
    pub write: bool,
    /// [`Method::Inline`]: the data is in the request of a write, in the reply of a read. [`Method::Direct`]: in the client's memory.
    pub method: Method,
    /// When written data must be durable; [`Stability::Unstable`] in reads.
    pub stability: Stability,
    /// Extents of the file, and of a direct one ranges of the client's memory, whose totals agree.
    pub lists: ShortLists,
}

impl BatchOperation {
    /// Bytes that it moves.
    pub fn len(&self) -> u64 {
        self.lists.extents.iter().map(|extent| extent.len).sum()
    }

    /// It moves nothing.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Its data travels in the messages.
    pub fn is_inline(&self) -> bool {
        self.method == Method::Inline
    }

    /// Bytes that its description takes in a payload.
    pub fn encoded_size(&self) -> usize {
        BATCH_OPERATION_SIZE + lists_size(self.lists.extents.len(), self.lists.segments.len())
    }

    /// Appends it to a payload. Its lists are within the limits of one request.
    pub fn encode(&self, payload: &mut Vec<u8>) {
        let fits = |count: usize| u32::try_from(count).expect("lists are at most LIST_MAX");
        let at = payload.len();
        payload.resize(at + self.encoded_size(), 0);
        let (head, lists) = payload[at..].split_at_mut(BATCH_OPERATION_SIZE);
        Writer::new(head)
            .u64(self.handle.0)
            .u8(u8::from(self.write))
            .u8(self.stability as u8)
            .u8(self.method as u8)
            .reserved(1)
            .u32(u32::try_from(self.len()).expect("an operation of a batch is below 4 GiB"))
            .u32(fits(self.lists.extents.len()))
            .u32(fits(self.lists.segments.len()));
        encode_lists(self.lists.extents.iter().copied(), &self.lists.segments, lists);
    }
}

/// A batch that cannot be carried out. It is answered `INVALID`, with these words; the session goes on.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum BatchError {
    /// Too many operations.
    #[error("a batch of {found} operations; the limit is {limit}")]
    TooMany {
        /// How many were announced.
        found: u32,
        /// How many there may be.
        limit: usize,
    },
    /// Too many extents or ranges in all.
    #[error("more than {LIST_MAX} extents, or ranges of memory, up to operation {index} of a batch")]
    TooLong {
        /// Where the limit was passed.
        index: usize,
    },
    /// More bytes than one request may move.
    #[error("a batch that moves {len} bytes; the limit is {limit}")]
    TooLarge {
        /// In all.
        len: u64,
        /// What one request may move.
        limit: u32,
    },
    /// Data of inline writes that is not all there, or more than theirs.
    #[error("a batch with {announced} bytes of data, where there are {found}")]
    Data {
        /// The length of the data, by the request.
        announced: u32,
        /// By the lengths of the inline writes, or of the payload.
        found: u64,
    },
    /// Results and data of inline reads that no reply carries.
    #[error("a reply of {len} bytes to a batch, with what is read inline; the limit is {limit}")]
    ReplyTooLarge {
        /// In all.
        len: u64,
        /// What a reply carries.
        limit: usize,
    },
    /// An operation that is not one.
    #[error("operation {index} of a batch: {error}")]
    Wire {
        /// Its place.
        index: usize,
        /// What is wrong.
        error: WireError,
    },
    /// Lists of an operation that contradict themselves.
    #[error("operation {index} of a batch: {error}")]
    Lists {
        /// Its place.
        index: usize,
        /// What is wrong.
        error: ListError,
    },
    /// Bytes behind the last operation.
    #[error("{extra} bytes behind the last operation of a batch")]
    Trailing {
        /// How many.
        extra: usize,
    },
}

/// What bounds a batch.
#[derive(Clone, Copy, Debug)]
pub struct BatchLimits {
    /// Bytes that it may move in all.
    pub len_max: u32,
    /// Bytes of the reply's payload: results, and data of inline reads.
    pub reply_max: usize,
}

/// Reads the operations of a batch from the part of its payload that describes them ([`BatchRequest::described_len`]). Nothing is allocated
/// before the counts have been checked.
pub fn decode_batch(
    payload: &[u8],
    request: &BatchRequest,
    limits: &BatchLimits,
) -> Result<Vec<BatchOperation>, BatchError> {
    let count = request.operations as usize;
    if count > BATCH_MAX || count > payload.len() / BATCH_OPERATION_SIZE {
        let limit = BATCH_MAX.min(payload.len() / BATCH_OPERATION_SIZE);
        return Err(BatchError::TooMany { found: request.operations, limit });
    }
    let mut operations = Vec::with_capacity(count);
    let mut reader = Reader::new(payload);
    let (mut extents, mut segments, mut len) = (0, 0, 0u64);
    // At most BATCH_MAX lengths of 32 bits each.
    let (mut data, mut reply) = (0u64, (count * BATCH_RESULT_SIZE) as u64);
    for index in 0..count {
        let (operation, list) =
            decode_operation(&mut reader).map_err(|error| BatchError::Wire { index, error })?;
        let lists_fail = |error| BatchError::Lists { index, error };
        for (what, count) in [("extents", list.extent_count), ("ranges of memory", list.segment_count)] {
            if count as usize > LIST_MAX {
                return Err(lists_fail(ListError::TooMany { what, count }));
            }
        }
        let (extent_count, segment_count) = (list.extent_count as usize, list.segment_count as usize);
        extents += extent_count;
        segments += segment_count;
        if extents > LIST_MAX || segments > LIST_MAX {
            return Err(BatchError::TooLong { index });
        }
        let bytes = reader
            .bytes("lists of an operation", lists_size(extent_count, segment_count))
            .map_err(|error| BatchError::Wire { index, error })?;
        let lists = decode_short_lists(bytes, &list).map_err(lists_fail)?;
        len += u64::from(list.len);
        if len > u64::from(limits.len_max) {
            return Err(BatchError::TooLarge { len, limit: limits.len_max });
        }
        match (operation.is_inline(), operation.write) {
            (true, true) => data += u64::from(list.len),
            (true, false) => reply += u64::from(list.len),
            (false, _) => {}
        }
        operations.push(BatchOperation { lists, ..operation });
    }
    match reader.remaining() {
        _ if data != u64::from(request.data) => {
            Err(BatchError::Data { announced: request.data, found: data })
        }
        _ if reply > limits.reply_max as u64 => {
            Err(BatchError::ReplyTooLarge { len: reply, limit: limits.reply_max })
        }
        0 => Ok(operations),
        extra => Err(BatchError::Trailing { extra }),
    }
}

fn decode_operation(reader: &mut Reader<'_>) -> Result<(BatchOperation, ListRequest), WireError> {
    let handle = FileHandle(reader.u64("handle of an operation")?);
    let write = match reader.u8("kind of an operation")? {
        0 => false,
        1 => true,
        value => return Err(WireError::Invalid { what: "kind of an operation", value: u64::from(value) }),
    };
    let stability = Stability::read(reader, "stability")?;
    stability.check(!write)?;
    let method = Method::read(reader, "method of an operation")?;
    if method.uses_eager_buffer() {
        return Err(WireError::Invalid { what: "method of an operation", value: method as u64 });
    }
    reader.reserved("reserved byte of an operation", 1)?;
    let list = ListRequest {
        len: reader.u32("length of an operation")?,
        method,
        stability,
        sieve: Sieve::default(),
        flags: ListFlags::default(),
        extent_count: reader.u32("extent count")?,
        segment_count: reader.u32("range count")?,
    };
    Ok((BatchOperation { handle, write, method, stability, lists: ShortLists::default() }, list))
}

/// What became of one operation of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchResult {
    /// Its own outcome.
    pub status: Status,
    /// Bytes moved: of a read those before the end of the file, of a write those from the first on without a gap.
    pub count: u32,
    /// Of a read: where the file ended, [`BatchResult::NOT_ENDED`] where that was not met. Of a write: the verifier.
    pub value: u64,
}

impl BatchResult {
    /// The end of the file was not met.
    pub const NOT_ENDED: u64 = u64::MAX;

    /// It failed.
    pub const fn failed(status: Status) -> Self {
        Self { status, count: 0, value: 0 }
    }

    /// Writes the 16 bytes.
    pub fn encode(&self, bytes: &mut [u8]) {
        Writer::new(bytes).u32(self.status.value()).u32(self.count).u64(self.value);
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, WireError> {
        let status = Status::from_value(reader.u32("status of an operation")?);
        let (count, value) = (reader.u32("count of an operation")?, reader.u64("value of an operation")?);
        if status != Status::OK && (count, value) != (0, 0) {
            return Err(WireError::Invalid {
                what: "result of an operation that failed",
                value: value | u64::from(count),
            });
        }
        Ok(Self { status, count, value })
    }
}

body! {
    /// Body of the reply to a batch, 8 bytes. The payload holds the results, in the order of the operations, then what was read inline, in
    /// their order and without gaps.
    pub struct BatchReply("reply to a batch") {
        /// Results in the payload.
        pub operations: u32 = "results of a batch",
        /// Bytes of data behind them.
        pub data: u32 = "data of a batch's reply",
    }
}

/// Reads the results of a batch of `count` operations, without the data behind them.
pub fn decode_batch_results(payload: &[u8], count: usize) -> Result<Vec<BatchResult>, WireError> {
    if payload.len() != count * BATCH_RESULT_SIZE {
        return Err(WireError::Invalid { what: "payload of a batch's reply", value: payload.len() as u64 });
    }
    let mut reader = Reader::new(payload);
    (0..count).map(|_| BatchResult::read(&mut reader)).collect()
}

body! {
    /// Body of a notice of operations that have ended, 16 bytes. The payload holds their results.
    pub struct BatchNotice("notice of a batch") {
        /// Of the batch.
        pub slot: u32 = "slot of a batch",
        /// Of the batch.
        pub sequence: u32 = "sequence of a batch",
        /// Results in the payload.
        pub count: u32 = "results of a notice" and 4 reserved,
    }
}

/// Appends a result to the payload of a notice.
pub fn encode_noticed_result(index: u32, result: &BatchResult, payload: &mut Vec<u8>) {
    let at = payload.len();
    payload.resize(at + BATCH_NOTICE_RESULT_SIZE, 0);
    Writer::new(&mut payload[at..]).u32(index).reserved(4);
    result.encode(&mut payload[at + 8..]);
}

/// Reads the results of a notice about a batch of `operations`.
pub fn decode_noticed_results(
    payload: &[u8],
    notice: &BatchNotice,
    operations: usize,
) -> Result<Vec<(usize, BatchResult)>, WireError> {
    let invalid = |what, value: usize| WireError::Invalid { what, value: value as u64 };
    let count = notice.count as usize;
    if count > operations || payload.len() != count * BATCH_NOTICE_RESULT_SIZE {
        return Err(invalid("payload of a notice", payload.len()));
    }
    let mut reader = Reader::new(payload);
    let mut result = || {
        let index = reader.u32("place of an operation")? as usize;
        reader.reserved("reserved bytes of a result", 4)?;
        if index >= operations {
            return Err(invalid("place of an operation", index));
        }
        Ok((index, BatchResult::read(&mut reader)?))
    };
    (0..count).map(|_| result()).collect()
}

#[cfg(test)]
mod tests;
