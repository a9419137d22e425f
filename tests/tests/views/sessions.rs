//! Views of sessions: how much they cost, and what becomes of them.

use std::io::IoSliceMut;

use dafs_client::{
    ArrayOrder, Block, Datatype, Error, Extent, File, Session, Sieve, Status, SubarrayDimension,
};
use dafs_proto::wire::Features;
use dafs_tests::harness::{Harness, On};
use dafs_tests::on_each_provider;
use dafs_tests::suite::{assert_same, bytes};

on_each_provider! {
    view_of_a_thousand_million_segments_costs_what_is_touched,
    access_through_a_view_is_one_request_of_constant_size,
    dense_view_is_read_with_gaps_unless_sieve_is_off,
    transfer_of_nothing_through_a_view_is_in_order_everywhere,
    view_is_described_again_to_a_server_that_was_restarted,
    view_that_is_dropped_makes_room_for_others,
    view_without_a_server_that_knows_them_is_refused_with_a_reason,
    view_of_another_session_is_refused,
}

pub(crate) fn requests(session: &Session, names: &[&str]) -> u64 {
    let operations = session.statistics().unwrap().operations;
    operations.iter().filter(|(name, _)| names.contains(&name.as_str())).map(|(_, count)| count).sum()
}

fn view_of_a_thousand_million_segments_costs_what_is_touched(on: On) {
    let harness = Harness::start(on);
    let session = harness.session();
    let file = session.mount("data").unwrap().create("f").unwrap();
    let view = session.view(&Datatype::bytes(4).vector(1_000_000_000, 1, 2)).unwrap();
    assert_eq!((view.size(), view.extent()), (4_000_000_000, 8 * 1_000_000_000 - 4));
    // Around the end of the first tile, where the next begins side by side.
    let place = view.size() - 40;
    let data = bytes(1, 80);
    assert_eq!(file.write_view(&view.at(0, place), &data).unwrap(), 80);
    let mut found = vec![0; 80];
    assert_eq!(file.read_view(&view.at(0, place), &mut found).unwrap().count, 80);
    assert_same(&found, &data, "what was read");
    let mut one = [0; 4];
    file.read_exact_at(&mut one, 8 * (1_000_000_000 - 10)).unwrap();
    assert_eq!(one, data[..4]);
    file.read_exact_at(&mut one, view.extent() as u64 + 8).unwrap();
    assert_eq!(one, data[44..48]);
}

// [VIEW-12]
fn access_through_a_view_is_one_request_of_constant_size(on: On) {
    let harness = Harness::start(on);
    let session = harness.session();
    let file = session.mount("data").unwrap().create("f").unwrap();
    let view = session.view(&Datatype::bytes(4).resized(0, 8)).unwrap();
    let mut buffer = session.buffer(256 << 10).unwrap();
    for count in [1usize, 10, 1000, 4096, 4097, 65_536] {
        let data = bytes(count as u64, 4 * count);
        let before = requests(&session, &["WriteView", "ReadView", "WriteList", "ReadList", "Write", "Read"]);
        assert_eq!(file.write_view(&view.at(4, 0), &data).unwrap(), data.len());
        let mut found = vec![0; data.len()];
        assert_eq!(file.read_view(&view.at(4, 0), &mut found).unwrap().count, data.len());
        assert_same(&found, &data, "what was read");
        let after = requests(&session, &["WriteView", "ReadView", "WriteList", "ReadList", "Write", "Read"]);
        // Of memory that is not registered as many as copying takes; one segment alone is a plain transfer.
        assert!(after - before <= 2 + 2 * (data.len() as u64 / (16 << 10)), "{count}: {}", after - before);
    }
    let before = requests(&session, &["WriteView", "ReadView"]);
    let data = bytes(7, buffer.len());
    buffer.copy_from_slice(&data);
    assert_eq!(file.write_view_buf(&view.at(0, 0), &buffer).unwrap(), data.len());
    buffer.fill(0);
    assert_eq!(file.read_view_buf(&view.at(0, 0), &mut buffer).unwrap().count, data.len());
    assert_same(&buffer, &data, "what was read");
    assert_eq!(requests(&session, &["WriteView", "ReadView"]) - before, 2);
    assert_eq!(requests(&session, &["ViewSet"]), 1);
}

// [LIST-15] [LIST-52]
fn dense_view_is_read_with_gaps_unless_sieve_is_off(on: On) {
    let harness = Harness::start(on);
    let session = harness.session();
    let file = session.mount("data").unwrap().create("f").unwrap();
    let data = bytes(1, 8000);
    file.write_all_at(&data, 0).unwrap();
    let wanted: Vec<u8> = data.chunks(8).flat_map(|row| &row[4..]).copied().collect();
    let view = session.view(&Datatype::bytes(4).resized(0, 8)).unwrap();
    let list: Vec<Extent> = (0..1000).map(|row| Extent::new(8 * row + 4, 4)).collect();
    let plain_reads = |file: &File, by_view: bool| {
        let before = requests(&session, &["Read"]);
        let mut found = vec![0; 4000];
        let read = match by_view {
            true => file.read_view(&view.at(4, 0), &mut found),
            false => file.read_list(&list, &mut [IoSliceMut::new(&mut found)]),
        };
        assert_eq!(read.unwrap().count, 4000);
        assert_same(&found, &wanted, "what was read");
        requests(&session, &["Read"]) - before
    };
    for sieve in Sieve::ALL {
        let file = file.with_sieve(sieve);
        let by_list = plain_reads(&file, false);
        assert_eq!(plain_reads(&file, true), by_list, "{sieve:?}");
        assert!(sieve != Sieve::Off || by_list == 0);
    }
    // The last four bytes are missing.
    file.truncate(7996).unwrap();
    let read = file.read_view(&view.at(4, 0), &mut vec![0; 4000]).unwrap();
    assert_eq!((read.count, read.end), (3996, Some(7996)));
}

// [VIEW-12]
fn transfer_of_nothing_through_a_view_is_in_order_everywhere(on: On) {
    let harness = Harness::start(on);
    let session = harness.session();
    let mut buffer = session.buffer(0).unwrap();
    let file = session.mount("data").unwrap().create("f").unwrap();
    // The byte that would be the first lies before the file, or behind all that a file may have.
    let before = session.view(&Datatype::bytes(4).hindexed(&[Block { len: 1, displacement: -8 }])).unwrap();
    let within = session.view(&Datatype::bytes(2).resized(0, 5)).unwrap();
    for (view, displacement, place) in
        [(&before, 0, 0), (&within, 0, u64::MAX), (&within, i64::MAX as u64, 0), (&within, u64::MAX, 7)]
    {
        let at = view.at(displacement, place);
        assert_eq!(file.write_view(&at, &[]).unwrap(), 0, "{displacement} {place}");
        assert_eq!(file.read_view(&at, &mut []).unwrap().count, 0, "{displacement} {place}");
        assert_eq!(file.write_view_buf(&at, &buffer).unwrap(), 0, "{displacement} {place}");
        assert_eq!(file.read_view_buf(&at, &mut buffer).unwrap().count, 0, "{displacement} {place}");
    }
    assert_eq!(file.metadata().unwrap().size, 0);
}

// [VIEW-11]
fn view_is_described_again_to_a_server_that_was_restarted(on: On) {
    let mut harness = Harness::start(on);
    let session = harness.session();
    let file = session.mount("data").unwrap().create("f").unwrap();
    let data = bytes(3, 3000);
    // One that takes one part of a description, one that takes several, and one that is gone.
    let blocks: Vec<Block> = (0..9000)
        .map(|i| Block { len: 1 + i % 3, displacement: 4 * i as i64 + i64::from(i % 7 == 0) })
        .collect();
    let short = session.view(&Datatype::bytes(3).resized(0, 5)).unwrap();
    let long = session.view(&Datatype::bytes(2).indexed(&blocks)).unwrap();
    drop(session.view(&Datatype::bytes(9).resized(0, 11)).unwrap());
    file.write_view(&short.at(0, 0), &data).unwrap();
    file.write_view(&long.at(100_000, 0), &data).unwrap();
    file.commit().unwrap();
    harness.restart();
    // By requests that name the views.
    let file = file.with_sieve(Sieve::Off);
    for view in [short.at(0, 0), long.at(100_000, 0)] {
        let mut found = vec![0; data.len()];
        assert_eq!(file.read_view(&view, &mut found).unwrap().count, data.len());
        assert_same(&found, &data, "what was read");
    }
    assert_eq!(requests(&session, &["ReadView"]), 2);
}

// [VIEW-9]
fn view_that_is_dropped_makes_room_for_others(on: On) {
    let harness = Harness::start(on);
    let session = harness.session();
    let datatype = Datatype::bytes(1).resized(0, 2);
    let views: Vec<_> = (0..1024).map(|_| session.view(&datatype).unwrap()).collect();
    let error = session.view(&datatype).unwrap_err();
    assert!(matches!(error, Error::Status { status: Status::TOO_MANY_VIEWS, .. }), "{error}");
    // A clone is the same view.
    let kept = views[0].clone();
    drop(views);
    let again: Vec<_> = (0..1023).map(|_| session.view(&datatype).unwrap()).collect();
    assert!(session.view(&datatype).is_err());
    let file = session.mount("mem").unwrap().create("f").unwrap();
    file.write_view(&kept.at(0, 0), b"abc").unwrap();
    file.write_view(&again[9].at(1, 0), b"xyz").unwrap();
    let mut found = [0; 6];
    file.read_exact_at(&mut found, 0).unwrap();
    assert_eq!(&found, b"axbycz");
}

fn view_without_a_server_that_knows_them_is_refused_with_a_reason(on: On) {
    let harness = Harness::start_with(on, |config| config.features = Features::all() - Features::VIEWS);
    let error = harness.session().view(&Datatype::bytes(1)).unwrap_err();
    assert!(matches!(error, Error::Status { status: Status::NOT_SUPPORTED, .. }), "{error}");
    assert!(error.to_string().contains("list"), "{error}");
}

fn view_of_another_session_is_refused(on: On) {
    let harness = Harness::start(on);
    let (session, other) = (harness.session(), harness.session());
    let part = SubarrayDimension { size: 9, subsize: 2, start: 3 };
    let view = other.view(&Datatype::bytes(1).subarray(ArrayOrder::C, &[part])).unwrap();
    let file = session.mount("mem").unwrap().create("f").unwrap();
    let error = file.write_view(&view.at(0, 0), b"1").unwrap_err();
    assert!(matches!(error, Error::Invalid(_)) && error.to_string().contains("another session"), "{error}");
}
