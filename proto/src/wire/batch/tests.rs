#![allow(clippy::unwrap_used, reason = "tests")]
use super::*;
use crate::extent::Extent;
use crate::wire::HEADER_SIZE;
use smallvec::smallvec;

fn operation(extents: usize, segments: usize, len: u64) -> BatchOperation {
    let mut lists = ShortLists {
        extents: smallvec![Extent::new(0, 0); extents],
        segments: smallvec![[7, 0, 0]; segments],
    };
    lists.extents[0].len = len;
    lists.segments[0][2] = len;
    let (handle, method, stability) = (FileHandle(1), Method::Direct, Stability::Unstable);
    BatchOperation { handle, write: false, method, stability, lists }
}

fn inline(write: bool, len: u64) -> BatchOperation {
    let lists = ShortLists { extents: smallvec![Extent::new(5, len)], segments: smallvec![] };
    BatchOperation { write, method: Method::Inline, lists, ..operation(1, 1, 1) }
}

const LIMITS: BatchLimits = BatchLimits { len_max: 1000, reply_max: 100_000 };

fn decode(operations: &[BatchOperation], announced: u32) -> Result<Vec<BatchOperation>, BatchError> {
    decode_with(operations, BatchRequest { operations: announced, ..BatchRequest::default() }, &LIMITS)
}

fn decode_with(
    operations: &[BatchOperation],
    request: BatchRequest,
    limits: &BatchLimits,
) -> Result<Vec<BatchOperation>, BatchError> {
    let mut payload = Vec::new();
    operations.iter().for_each(|operation| operation.encode(&mut payload));
    decode_batch(&payload, &request, limits)
}

// [BATCH-2]
#[test]
fn data_in_messages_that_disagrees_with_its_lengths_is_refused() {
    let operations = [inline(true, 7), inline(false, 30), operation(1, 1, 9), inline(true, 4)];
    for (data, read) in [(10, false), (11, true), (12, false), (0, false), (u32::MAX, false)] {
        let request = BatchRequest { operations: 4, data, ..BatchRequest::default() };
        let found = decode_with(&operations, request, &LIMITS);
        match read {
            true => assert_eq!(found.as_deref(), Ok(&operations[..])),
            false => assert_eq!(found, Err(BatchError::Data { announced: data, found: 11 })),
        }
        for (payload_len, fits) in [(10, data <= 10), (11, data <= 11), (200, data <= 200)] {
            assert_eq!(request.described_len(payload_len).is_ok(), fits, "{data} of {payload_len}");
        }
    }
    // Lengths of which only the sum does not fit 32 bits.
    let limits = BatchLimits { len_max: u32::MAX, reply_max: usize::MAX };
    let half = 1 << 31;
    for (write, data) in [(true, 0), (true, u32::MAX), (false, 0)] {
        let request = BatchRequest { operations: 2, data, ..BatchRequest::default() };
        let found = decode_with(&[inline(write, half), inline(write, half)], request, &limits);
        assert_eq!(found, Err(BatchError::TooLarge { len: 1 << 32, limit: u32::MAX }));
    }
}

// [BATCH-2] : one byte less than results and data, all of it, one more.
#[test]
fn reads_that_no_reply_carries_are_refused() {
    let operations = [inline(false, 7), operation(1, 1, 500), inline(false, 30), inline(true, 4)];
    let request = BatchRequest { operations: 4, data: 4, ..BatchRequest::default() };
    let needed = 4 * BATCH_RESULT_SIZE + 37;
    for (reply_max, read) in [(0, false), (needed - 1, false), (needed, true), (needed + 1, true)] {
        let found = decode_with(&operations, request, &BatchLimits { reply_max, ..LIMITS });
        assert_eq!(found.is_ok(), read, "{reply_max}");
    }
}

// [WIRE-11]
#[test]
fn operation_whose_method_and_ranges_disagree_is_refused() {
    let (mut direct, mut in_message) = (operation(1, 1, 5), inline(false, 5));
    assert!(decode(&[direct.clone(), in_message.clone()], 2).is_ok());
    direct.method = Method::Inline;
    assert!(matches!(decode(&[direct], 1), Err(BatchError::Lists { index: 0, .. })));
    in_message.method = Method::Direct;
    assert!(matches!(decode(&[in_message.clone()], 1), Err(BatchError::Lists { index: 0, .. })));
    for method in [Method::Eager, Method::ClientInitiated] {
        in_message.method = method;
        assert!(matches!(decode(&[in_message.clone()], 1), Err(BatchError::Wire { index: 0, .. })));
    }
}

// [BATCH-2]: at each limit and one beyond it.
#[test]
fn batch_at_and_past_each_limit_is_read_and_refused() {
    let one = operation(1, 1, 1);
    for (count, read) in [(BATCH_MAX - 1, true), (BATCH_MAX, false), (BATCH_MAX + 1, false)] {
        // The limit is 1,000 bytes.
        let operations = vec![operation(1, 1, 0); count];
        let result = decode(&operations, u32::try_from(count).unwrap());
        assert_eq!(result.is_ok(), read || count == BATCH_MAX, "{count}");
    }
    for (announced, found) in [(0, 1), (2, 1), (1_000_000_000, 1), (u32::MAX, 1)] {
        assert!(decode(&vec![one.clone(); found], announced).is_err(), "{announced}");
    }
    let half = LIST_MAX / 2;
    for (second, read) in [(half - 1, true), (half, true), (half + 1, false)] {
        let by_extents = [operation(half, 1, 4), operation(second, 1, 4)];
        let by_ranges = [operation(1, half, 4), operation(1, second, 4)];
        assert_eq!(decode(&by_extents, 2).is_ok(), read, "{second}");
        assert_eq!(decode(&by_ranges, 2).is_ok(), read, "{second}");
    }
    for (len, read) in [(499, true), (500, true), (501, false), (u64::from(u32::MAX), false)] {
        assert_eq!(decode(&[operation(1, 1, 500), operation(1, 1, len)], 2).is_ok(), read, "{len}");
    }
}

#[test]
fn batch_cut_short_anywhere_is_refused() {
    let mut payload = Vec::new();
    operation(2, 2, 5).encode(&mut payload);
    operation(1, 1, 6).encode(&mut payload);
    let request = BatchRequest { operations: 2, ..BatchRequest::default() };
    assert_eq!(decode_batch(&payload, &request, &LIMITS).unwrap().len(), 2);
    for len in 0..payload.len() {
        assert!(decode_batch(&payload[..len], &request, &LIMITS).is_err(), "{len}");
    }
    payload.push(0);
    assert_eq!(decode_batch(&payload, &request, &LIMITS), Err(BatchError::Trailing { extra: 1 }));
}

#[test]
fn batch_whose_operation_contradicts_itself_is_refused() {
    for change in [8usize, 9, 10, 11, 12, 16, 20] {
        let mut payload = Vec::new();
        operation(1, 1, 5).encode(&mut payload);
        payload[change] ^= 0x83;
        let request = BatchRequest { operations: 1, ..BatchRequest::default() };
        assert!(decode_batch(&payload, &request, &LIMITS).is_err(), "byte {change}");
    }
}

#[test]
fn notice_of_operations_that_are_not_there_is_refused() {
    let mut payload = Vec::new();
    encode_noticed_result(3, &BatchResult { status: Status::OK, count: 4, value: 5 }, &mut payload);
    let notice = BatchNotice { slot: 0, sequence: 1, count: 1 };
    assert_eq!(decode_noticed_results(&payload, &notice, 4).unwrap()[0].0, 3);
    assert!(decode_noticed_results(&payload, &notice, 3).is_err());
    assert!(decode_noticed_results(&payload, &BatchNotice { count: 2, ..notice }, 4).is_err());
    assert!(decode_noticed_results(&payload, &BatchNotice { count: u32::MAX, ..notice }, 4).is_err());
}

// [WIRE-43]
#[test]
fn result_of_a_failure_that_moved_bytes_is_refused() {
    let mut bytes = [0; BATCH_RESULT_SIZE];
    BatchResult::failed(Status::IO).encode(&mut bytes);
    assert_eq!(decode_batch_results(&bytes, 1), Ok(vec![BatchResult::failed(Status::IO)]));
    bytes[4] = 1;
    assert!(decode_batch_results(&bytes, 1).is_err());
    assert!(decode_batch_results(&bytes, 2).is_err());
}

#[test]
fn hints_without_notices_are_refused() {
    let mut body = [0; BatchRequest::HEAD_SIZE - HEADER_SIZE];
    let flags = BatchFlags::NOTIFY;
    let request = BatchRequest { flags, window_us: 5, completions: 6, operations: 7, data: 8 };
    request.encode(&mut body);
    assert_eq!(BatchRequest::decode(&body), Ok(request));
    body[4] = 2;
    assert!(BatchRequest::decode(&body).is_err());
    body[4] = 4;
    assert!(BatchRequest::decode(&body).is_err());
}
