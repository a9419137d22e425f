//! Lists that go on in a new session, on other terms than those that they began on.

use std::io::{IoSlice, IoSliceMut};

use dafs_client::{Config, Extent, Noncontiguous};
use dafs_proto::wire::Features;
use dafs_tests::harness::{Harness, On};
use dafs_tests::on_each_provider;
use dafs_tests::suite::{assert_same, bytes};

on_each_provider! {
    list_read_with_its_gaps_goes_on_where_a_request_moves_less,
    list_continues_with_a_server_without_lists,
}

const COUNT: usize = 200;

fn extents(stride: u64) -> Vec<Extent> {
    (0..COUNT as u64).map(|index| Extent::new(stride * index, 512)).collect()
}

// [LIST-9]
fn list_read_with_its_gaps_goes_on_where_a_request_moves_less(on: On) {
    let mut harness = Harness::start(on);
    let session = harness.session();
    let file = session.mount("data").unwrap().create("f").unwrap();
    let content = bytes(1, 1024 * COUNT);
    file.write_all_at(&content, 0).unwrap();
    file.commit().unwrap();
    harness.stop();
    // Decided by what the server was that is gone.
    let pending = file.submit_read_list(&extents(1024), vec![vec![0; 512 * COUNT]]);
    harness.restart_with(|config| config.transfer_size_max = 64 << 10);
    let read = pending.wait();
    assert_eq!(read.result.unwrap().count, 512 * COUNT);
    let expected: Vec<u8> = content.chunks(1024).flat_map(|pair| &pair[..512]).copied().collect();
    assert_same(&read.buffers[0], &expected, "what was read");
}

// [LIST-12]
fn list_continues_with_a_server_without_lists(on: On) {
    let mut harness = Harness::start(on);
    let config = Config { noncontiguous: Noncontiguous::Gather, ..Config::default() };
    let session = harness.session_with(&config);
    let file = session.mount("data").unwrap().create("f").unwrap().with_explanation();
    let data = bytes(2, 512 * COUNT);
    let list = extents(5000);
    assert_eq!(file.write_list(&list, &[IoSlice::new(&data)]).unwrap(), data.len());
    file.commit().unwrap();
    harness.stop();
    let read = file.submit_read_list(&list, vec![vec![0; data.len()]]);
    let behind = extents(5000).into_iter().map(|extent| Extent::new(extent.offset + 1000, extent.len));
    let behind: Vec<Extent> = behind.collect();
    let write = file.submit_write_list(&behind, vec![data.clone()]);
    harness.restart_with(|config| config.features = Features::all() - Features::LISTS - Features::EXPLAIN);
    let read = read.wait();
    assert_eq!(read.result.unwrap().count, data.len());
    assert_same(&read.buffers[0], &data, "what was read");
    assert_eq!(write.wait().result.unwrap(), data.len());
    let mut found = vec![0; data.len()];
    file.read_list(&behind, &mut [IoSliceMut::new(&mut found)]).unwrap();
    assert_same(&found, &data, "what was written");
    let operations = session.statistics().unwrap().operations;
    let lists = operations.iter().filter(|(name, _)| name.ends_with("List"));
    assert_eq!(lists.map(|(_, count)| count).sum::<u64>(), 0, "{operations:?}");
}
