//! Writes through views that name a byte twice, or whose tiles mesh, in several requests.

use dafs_client::{Config, Datatype, Extent, File, MethodOverride, Pending, Session, View};
use dafs_proto::view::View as Compiled;
use dafs_tests::faulty::{Fault, Faults, Kind};
use dafs_tests::harness::{Harness, On};
use dafs_tests::on_each_provider;
use dafs_tests::suite::{assert_same, bytes, wait_for};

use super::sessions::requests;

on_each_provider! {
    view_that_meshes_is_written_through_the_view_alone,
    write_through_a_view_that_overlaps_leaves_the_last_in_place,
    overlapping_write_cut_in_a_new_session_keeps_the_last,
}

/// Columns of a matrix that mesh, and tiles that write over those before.
fn shapes() -> [Datatype; 3] {
    [
        Datatype::bytes(4).hvector(256, 1, 16_384).resized(0, 4),
        Datatype::bytes(4).hvector(3, 1, 40).resized(0, 4),
        Datatype::bytes(9000).hvector(2, 1, -4000).resized(0, 700),
    ]
}

/// Where the first tile lies.
const DISPLACEMENT: u64 = 10_000;

/// What a file has after the data was written through a view, piece by piece.
fn written(datatype: &Datatype, data: &[u8]) -> Vec<u8> {
    let view = Compiled::new(datatype).unwrap();
    let (mut file, mut rest) = (Vec::new(), data);
    for Extent { offset, len } in view.segments(DISPLACEMENT, 0, data.len() as u64) {
        let (offset, len) = (offset as usize, len as usize);
        if file.len() < offset + len {
            file.resize(offset + len, 0);
        }
        let piece = rest.split_off(..len).unwrap();
        file[offset..offset + len].copy_from_slice(piece);
    }
    file
}

// [VIEW-12] [LIST-4] Segments that are listed take forty bytes each and more: of these a million.
fn view_that_meshes_is_written_through_the_view_alone(on: On) {
    let harness = Harness::start(on);
    let session = harness.session();
    let file = session.mount("data").unwrap().create("f").unwrap();
    let data = bytes(1, 4 << 20);
    for datatype in shapes() {
        let view = session.view(&datatype).unwrap();
        file.truncate(0).unwrap();
        assert_eq!(file.write_view(&view.at(DISPLACEMENT, 0), &data).unwrap(), data.len());
        let whole = std::fs::read(harness.data().join("f")).unwrap();
        assert_same(&whole, &written(&datatype, &data), "the file");
    }
    assert!(requests(&session, &["WriteView"]) >= 3);
    assert_eq!(requests(&session, &["WriteList", "Write"]), 0);
}

/// Lets the server execute what it will, but for what is held, and that at last.
fn release_last(session: &Session, faults: &Faults) {
    for _ in 0..3 {
        session.probe().unwrap();
    }
    faults.release();
}

// [LIST-20]
fn write_through_a_view_that_overlaps_leaves_the_last_in_place(on: On) {
    for method in [MethodOverride::Auto, MethodOverride::Inline, MethodOverride::Direct] {
        for datatype in shapes() {
            let (harness, faults) = Harness::start_faulty(on, |config| config.transfer_size_max = 64 << 10);
            let session = harness.session_with(&Config { method, ..Config::default() });
            let file = session.mount("mem").unwrap().create("f").unwrap();
            let view = session.view(&datatype).unwrap();
            let data = bytes(2, 700_000);
            // The first request is the last to be executed.
            faults.next(Kind::Write, Fault::Hold, 1);
            let mut pending = file.submit_write_view(&view.at(DISPLACEMENT, 0), data.clone());
            wait_for("a write that is held", || pending.test() || faults.held() > 0);
            release_last(&session, &faults);
            assert_eq!(pending.wait().result.unwrap(), data.len());
            let expected = written(&datatype, &data);
            let mut found = vec![0; expected.len()];
            file.read_exact_at(&mut found, 0).unwrap();
            assert_same(&found, &expected, &format!("{method:?} {datatype:?}"));
        }
    }
}

// [LIST-20]
fn overlapping_write_cut_in_a_new_session_keeps_the_last(on: On) {
    let by_view = |view: &View, file: &File, data| file.submit_write_view(&view.at(60_000, 0), data);
    cut_in_a_new_session(on, by_view, |done| done.result);
    let list = [Extent::new(60_000, 70_000), Extent::new(0, 70_000)];
    let by_list = |_: &View, file: &File, data| file.submit_write_list(&list, vec![data]);
    cut_in_a_new_session(on, by_list, |done| done.result);
}

/// What is one request by the terms of the session that it begins in goes by those of a narrower one.
fn cut_in_a_new_session<T>(
    on: On,
    submit: impl Fn(&View, &File, Vec<u8>) -> Pending<T>,
    result: impl Fn(T) -> dafs_client::Result<usize>,
) {
    let mut harness = Harness::start(on);
    let session = harness.session_with(&Config { method: MethodOverride::Direct, ..Config::default() });
    let file = session.mount("data").unwrap().create("f").unwrap();
    let view = session.view(&Datatype::bytes(70_000).hvector(2, 1, -60_000)).unwrap();
    let data = bytes(3, 140_000);
    harness.stop();
    let mut pending = submit(&view, &file, data.clone());
    harness.restart_with(|config| config.transfer_size_max = 64 << 10);
    let (faults, wrap) = Faults::new();
    faults.next(Kind::Write, Fault::Hold, 1);
    harness.restart_over(wrap);
    wait_for("a write that is held", || pending.test() || faults.held() > 0);
    release_last(&session, &faults);
    assert_eq!(result(pending.wait()).unwrap(), data.len());
    let mut found = vec![0; 130_000];
    file.read_exact_at(&mut found, 0).unwrap();
    assert_same(&found[..70_000], &data[70_000..], "what was the last");
    assert_same(&found[70_000..], &data[10_000..70_000], "what it left of the first");
}
