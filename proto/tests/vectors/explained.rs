//! Golden messages of lists and views whose requests ask how they were moved.

use dafs_proto::extent::Extent;
use dafs_proto::wire::{
    Explanation, HEADER_SIZE, Header, ListFlags, ListReadReply, ListRequest, Lists, Method, Opcode, Sieve,
    Stability, Status, Verifier, ViewRequest, WireError, WriteReply, decode_lists, encode_lists,
    encode_segments, lists_size,
};

use crate::{check, head, hex, request, vector};

/// Of 2 parts, one without a call.
const READ: Explanation = Explanation {
    parts: 2,
    copied: 1,
    calls: 1,
    windows: 0,
    waited: 1,
    gap_max: 1600,
    call_ns: 400,
    byte_ps: 250,
    window_bytes: 0,
    predicted_ns: 0,
    apart_ns: 0,
    measured_ns: 90_210,
};

/// Of 6 parts, with a window.
const WRITTEN: Explanation = Explanation {
    parts: 6,
    copied: 0,
    calls: 2,
    windows: 1,
    waited: 1,
    gap_max: 3200,
    call_ns: 800,
    byte_ps: 250,
    window_bytes: 400,
    predicted_ns: 3300,
    apart_ns: 4000,
    measured_ns: 51_000,
};

/// The request of this name has this body and payload.
fn check_request(name: &str, opcode: Opcode, payload: &[u8], body: impl FnOnce(&mut [u8]), body_len: usize) {
    assert_eq!(hex(payload), hex(&vector(&format!("{name} payload"))), "{name}");
    let payload_len = u32::try_from(payload.len()).unwrap();
    let header = Header { payload_len, ..request(opcode) };
    check(name, &head(header, body, body_len), payload_len);
}

/// The reply of this name has this body, and as its payload `data` and the explanation.
fn check_reply(
    name: &str,
    opcode: Opcode,
    (data, told): (&[u8], &Explanation),
    body: impl FnOnce(&mut [u8]),
    body_len: usize,
) {
    let mut payload = [data, &[0; Explanation::SIZE]].concat();
    told.encode(&mut payload[data.len()..]);
    let expected = vector(&format!("{name} payload"));
    assert_eq!(hex(&payload), hex(&expected), "{name}");
    assert_eq!(Explanation::decode(&expected[data.len()..]).as_ref(), Ok(told), "{name}");
    let payload_len = u32::try_from(payload.len()).unwrap();
    let header = Header { payload_len, ..request(opcode).reply(Status::OK) };
    check(name, &head(header, body, body_len), payload_len);
}

// [LIST-47]
#[test]
fn vector_explained_list() {
    let body = ListRequest {
        len: 8,
        method: Method::Inline,
        stability: Stability::Unstable,
        sieve: Sieve::Auto,
        flags: ListFlags::EXPLAIN,
        extent_count: 2,
        segment_count: 0,
    };
    let lists = Lists { extents: vec![Extent::new(4096, 5), Extent::new(16, 3)], segments: vec![] };
    let mut payload = vec![0; lists_size(2, 0)];
    encode_lists(lists.extents.iter().copied(), &[], &mut payload);
    let name = "explained list read request";
    check_request(name, Opcode::ReadList, &payload, |bytes| body.encode(bytes), 16);
    assert_eq!(ListRequest::decode_for(Opcode::ReadList, &vector(name)[HEADER_SIZE..]).as_ref(), Ok(&body));
    assert_eq!(decode_lists(&payload, &body, 0), Ok(lists));

    let body = ListReadReply { count: 7, end: Some(4100) };
    let name = "explained list read reply";
    check_reply(name, Opcode::ReadList, (b"explain", &READ), |bytes| body.encode(bytes), 16);
    assert_eq!(ListReadReply::decode(&vector(name)[HEADER_SIZE..]), Ok(body));
}

// [LIST-47]
#[test]
fn vector_explained_view() {
    let body = ViewRequest {
        displacement: 4096,
        place: 16,
        group: 0,
        group_size: 0,
        view: 7,
        len: 8,
        method: Method::Direct,
        stability: Stability::DataSync,
        sieve: Sieve::On,
        flags: ListFlags::EXPLAIN,
        segment_count: 1,
    };
    let range = [0xaabb_ccdd_0011_2233, 0x40, 8];
    let mut payload = vec![0; 24];
    encode_segments(&[range], &mut payload);
    let name = "explained view write request";
    check_request(name, Opcode::WriteView, &payload, |bytes| body.encode(bytes), 48);
    assert_eq!(ViewRequest::decode_for(Opcode::WriteView, &vector(name)[HEADER_SIZE..]), Ok(body));
    assert_eq!(body.ranges(&payload, 0), Ok(vec![range]));

    let verifier = Verifier(0x1122_3344_5566_7788);
    let body = WriteReply { offset: 0, count: 8, stability: Stability::DataSync, verifier };
    let name = "explained view write reply";
    check_reply(name, Opcode::WriteView, (&[], &WRITTEN), |bytes| body.encode(bytes), 24);
    assert_eq!(WriteReply::decode(&vector(name)[HEADER_SIZE..]), Ok(body));
}

// [LIST-48]
#[test]
fn explanation_of_another_length_is_none() {
    let told = vector("explained view write reply payload");
    for len in 0..Explanation::SIZE {
        assert!(matches!(Explanation::decode(&told[..len]), Err(WireError::Truncated { .. })), "{len} bytes");
    }
    assert!(Explanation::decode(&[told, vec![0]].concat()).is_err());
}
