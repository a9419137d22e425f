//! Golden messages of views, and the description that has a node of each kind.

use std::num::NonZeroU64;

use dafs_proto::view::{
    ArrayOrder, Block, DarrayDimension, Datatype, Distribution, Node, StructBlock, SubarrayDimension, View,
};
use dafs_proto::wire::{
    HEADER_SIZE, Header, ListFlags, ListReadReply, Method, Opcode, Sieve, Stability, Status, Verifier,
    ViewDropRequest, ViewRequest, ViewSetRequest, WriteReply, decode_datatype, encode_datatype,
    encode_segments,
};

use crate::{check, head, hex, request, vector};

/// A node of each kind, as the file has them.
fn of_each_kind() -> Datatype {
    let block = |len, displacement| Block { len, displacement };
    let dimension = |distribution, processes| DarrayDimension { size: 6, distribution, processes };
    Datatype::from_nodes(vec![
        Node::Bytes { len: 4 },
        Node::Contiguous { count: 2, of: 0 },
        Node::Vector { count: 2, block_len: 3, stride: -4, in_bytes: false, of: 1 },
        Node::Vector { count: 2, block_len: 1, stride: 500, in_bytes: true, of: 2 },
        Node::Indexed { blocks: vec![block(1, 0), block(2, -3)], in_bytes: false, of: 3 },
        Node::Indexed { blocks: vec![block(1, 7)], in_bytes: true, of: 4 },
        Node::IndexedBlock { block_len: 1, displacements: vec![0, 9], in_bytes: false, of: 5 },
        Node::IndexedBlock { block_len: 2, displacements: vec![-1], in_bytes: true, of: 6 },
        Node::Resized { lower: -7, extent: 9000, of: 7 },
        Node::Subarray {
            order: ArrayOrder::Fortran,
            dimensions: vec![SubarrayDimension { size: 5, subsize: 2, start: 1 }],
            of: 8,
        },
        Node::Bytes { len: 1 },
        Node::Struct {
            blocks: vec![
                StructBlock { len: 1, displacement: 3, of: 9 },
                StructBlock { len: 2, displacement: -8, of: 10 },
            ],
        },
        Node::Darray {
            size: 4,
            rank: 3,
            order: ArrayOrder::C,
            dimensions: vec![
                dimension(Distribution::None, 1),
                dimension(Distribution::Block(NonZeroU64::new(3)), 2),
                dimension(Distribution::Cyclic(None), 2),
            ],
            of: 11,
        },
    ])
}

fn check_bytes(name: &str, opcode: Opcode, payload: &[u8], body: impl FnOnce(&mut [u8]), body_len: usize) {
    let payload_len = u32::try_from(payload.len()).unwrap();
    let header = Header { payload_len, ..request(opcode) };
    check(name, &head(header, body, body_len), payload_len);
}

#[test]
fn vector_description_has_a_node_of_each_kind() {
    let (datatype, expected) = (of_each_kind(), vector("view set request payload"));
    assert_eq!(hex(&encode_datatype(&datatype)), hex(&expected));
    assert_eq!(decode_datatype(&expected), Ok(datatype.clone()));
    // Each process has 6 × 3 × 3 of the elements.
    let size = View::new(&datatype).unwrap().size();
    assert_eq!(size, 54 * (2 * 2 * 2 * 3 * 2 * 2 * 3 * 2 * 4 + 2));
}

#[test]
fn vector_view_set_and_drop() {
    let description = vector("view set request payload");
    let description_len = u32::try_from(description.len()).unwrap();
    let all = ViewSetRequest { view: 7, description_len, offset: 0 };
    let part = ViewSetRequest { view: 8, description_len: 5000, offset: 4096 };
    for (name, body) in [("view set request", all), ("view set part request", part)] {
        let payload = vector(&format!("{name} payload"));
        check_bytes(name, Opcode::ViewSet, &payload, |bytes| body.encode(bytes), 16);
        assert_eq!(ViewSetRequest::decode(&vector(name)[HEADER_SIZE..]), Ok(body));
    }
    let body = ViewDropRequest { view: 7 };
    check_bytes("view drop request", Opcode::ViewDrop, &[], |bytes| body.encode(bytes), 8);
    assert_eq!(ViewDropRequest::decode(&vector("view drop request")[HEADER_SIZE..]), Ok(body));
    for (name, opcode, status) in [
        ("view set reply", Opcode::ViewSet, Status::OK),
        ("view drop reply", Opcode::ViewDrop, Status::OK),
        ("no view reply", Opcode::ReadView, Status::NO_VIEW),
    ] {
        check(name, &head(request(opcode).reply(status), |_| {}, 0), 0);
    }
}

#[test]
fn vector_view_requests() {
    let read = ViewRequest {
        displacement: 4096,
        place: 16,
        group: 9,
        group_size: 4,
        view: 7,
        len: 8,
        method: Method::Inline,
        stability: Stability::Unstable,
        sieve: Sieve::Auto,
        flags: ListFlags::default(),
        segment_count: 0,
    };
    let write = ViewRequest {
        group: 0,
        group_size: 0,
        method: Method::Direct,
        stability: Stability::DataSync,
        sieve: Sieve::Off,
        flags: ListFlags::default(),
        segment_count: 1,
        ..read
    };
    let range = [0xaabb_ccdd_0011_2233, 0x40, 8];
    let mut payload = vec![0; 24];
    encode_segments(&[range], &mut payload);
    assert_eq!(hex(&payload), hex(&vector("view write request payload")));
    for (name, opcode, body, payload, ranges) in [
        ("view read request", Opcode::ReadView, read, &[][..], vec![]),
        ("view write request", Opcode::WriteView, write, &payload[..], vec![range]),
    ] {
        check_bytes(name, opcode, payload, |bytes| body.encode(bytes), 48);
        assert_eq!(ViewRequest::decode_for(opcode, &vector(name)[HEADER_SIZE..]), Ok(body), "{name}");
        assert_eq!(body.ranges(payload, 0), Ok(ranges), "{name}");
        for len in 0..payload.len() {
            assert!(body.ranges(&payload[..len], 0).is_err(), "{name}: {len} bytes");
        }
    }
    // Data of an inline write stands behind nothing.
    let inline = ViewRequest { stability: Stability::FileSync, ..read };
    assert_eq!(inline.ranges(&[5; 8], 8), Ok(vec![]));
    assert!(inline.ranges(&[5; 7], 8).is_err() && inline.ranges(&[5; 9], 8).is_err());
}

#[test]
fn vector_view_replies() {
    let body = ListReadReply { count: 7, end: Some(4500) };
    let header = Header { payload_len: 7, ..request(Opcode::ReadView).reply(Status::OK) };
    check("view read reply", &head(header, |bytes| body.encode(bytes), 16), 7);
    assert_eq!(ListReadReply::decode(&vector("view read reply")[HEADER_SIZE..]), Ok(body));
    let verifier = Verifier(0x1122_3344_5566_7788);
    let body = WriteReply { offset: 0, count: 8, stability: Stability::DataSync, verifier };
    let header = request(Opcode::WriteView).reply(Status::OK);
    check("view write reply", &head(header, |bytes| body.encode(bytes), 24), 0);
    assert_eq!(WriteReply::decode(&vector("view write reply")[HEADER_SIZE..]), Ok(body));
}
