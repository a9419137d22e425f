//! How many requests a list takes.

use std::io::{IoSlice, IoSliceMut};

use dafs_client::{Config, Extent, MethodOverride, Noncontiguous, Session};
use dafs_tests::harness::{Harness, On};
use dafs_tests::on_each_provider;
use dafs_tests::suite::{EXPORTS, assert_same, bytes};

on_each_provider! {
    list_of_128_segments_is_one_request,
    list_of_one_extent_in_many_pieces_of_memory_is_one_request,
    long_list_is_cut_into_as_few_requests_as_possible,
}

/// Requests of each opcode that the server has answered.
fn requests(session: &Session, name: &str) -> u64 {
    let operations = session.statistics().unwrap().operations;
    operations.iter().find(|(opcode, _)| opcode == name).map_or(0, |(_, count)| *count)
}

/// `count` extents of `len` bytes, with gaps as long.
fn extents(count: u64, len: u64) -> Vec<Extent> {
    (0..count).map(|index| Extent::new(2 * index * len, len)).collect()
}

// [LIST-2]
fn list_of_128_segments_is_one_request(on: On) {
    let harness = Harness::start(on);
    // What a message carries, what a bounce buffer holds, and by RDMA.
    let as_decided = [16, 64, 511, 512, 513, 1024, 2048].map(|len| (MethodOverride::Auto, len));
    for (method, len) in as_decided.into_iter().chain([(MethodOverride::Direct, 4096)]) {
        let session = harness.session_with(&Config { method, ..Config::default() });
        for export in EXPORTS {
            let file = session.mount(export).unwrap().create("f").unwrap();
            let list = extents(128, len);
            let data = bytes(len, 128 * len as usize);
            let before = requests(&session, "WriteList");
            let slices: Vec<IoSlice<'_>> = data.chunks(len as usize).map(IoSlice::new).collect();
            assert_eq!(file.write_list(&list, &slices).unwrap(), data.len());
            let mut buffer = session.buffer(data.len()).unwrap();
            buffer.copy_from_slice(&data);
            let parts: Vec<_> = (0..128).map(|i| i * len as usize..(i + 1) * len as usize).collect();
            assert_eq!(file.write_list_buf(&list, &buffer, &parts).unwrap(), data.len());
            assert_eq!(requests(&session, "WriteList") - before, 2, "writes of {len} bytes");

            // A dense list may be read with its gaps.
            let reads = |session: &Session| requests(session, "ReadList") + requests(session, "Read");
            let before = reads(&session);
            let mut found = vec![0; data.len()];
            let mut slices: Vec<IoSliceMut<'_>> =
                found.chunks_mut(len as usize).map(IoSliceMut::new).collect();
            assert_eq!(file.read_list(&list, &mut slices).unwrap().count, data.len());
            assert_same(&found, &data, "what was read");
            buffer.fill(0);
            assert_eq!(file.read_list_buf(&list, &mut buffer, &parts).unwrap().count, data.len());
            assert_same(&buffer, &data, "what was read into the buffer");
            assert_eq!(reads(&session) - before, 2, "reads of {len} bytes");
        }
    }
}

// [LIST-2]
fn list_of_one_extent_in_many_pieces_of_memory_is_one_request(on: On) {
    let harness = Harness::start(on);
    let session = harness.session();
    let file = session.mount("data").unwrap().create("f").unwrap();
    let mut buffer = session.buffer(200 * 8192).unwrap();
    let parts: Vec<_> = (0..200).map(|i| i * 8192..i * 8192 + 4096).collect();
    let data = bytes(3, 200 * 4096);
    file.write_all_at(&data, 100).unwrap();
    let before = requests(&session, "Read") + requests(&session, "ReadList");
    let list = [Extent::new(100, 200 * 4096)];
    assert_eq!(file.read_list_buf(&list, &mut buffer, &parts).unwrap().count, data.len());
    assert_eq!(requests(&session, "Read") + requests(&session, "ReadList") - before, 1);
    for (part, expected) in parts.iter().zip(data.chunks(4096)) {
        assert_same(&buffer[part.clone()], expected, "a part");
        assert!(buffer[part.end..part.end + 4096].iter().all(|byte| *byte == 0));
    }
}

// [LIST-2] [LIST-3]
fn long_list_is_cut_into_as_few_requests_as_possible(on: On) {
    let harness = Harness::start(on);
    // `Auto` may read a dense list with its gaps.
    let config = Config { noncontiguous: Noncontiguous::Gather, ..Config::default() };
    let session = harness.session_with(&config);
    let file = session.mount("mem").unwrap().create("f").unwrap();
    // A request's payload is at least the inline limit of writes; an extent takes 12 bytes of it.
    let fits = (session.agreed().write_inline_max as usize / 12).min(4096);
    for (count, expected) in [(fits - 1, 1), (fits, 1), (fits + 1, 2), (2 * fits, 2), (2 * fits + 1, 3)] {
        let list = extents(count as u64, 1);
        let data = bytes(count as u64, count);
        file.truncate(0).unwrap();
        assert_eq!(file.write_list(&list, &[IoSlice::new(&data)]).unwrap(), count);
        let before = requests(&session, "ReadList") + requests(&session, "Read");
        let mut found = vec![0; count];
        assert_eq!(file.read_list(&list, &mut [IoSliceMut::new(&mut found)]).unwrap().count, count);
        assert_same(&found, &data, "what was read");
        let after = requests(&session, "ReadList") + requests(&session, "Read");
        assert_eq!(after - before, expected, "{count} extents");
    }
}
