//! Files over several servers, as MPI programs use them.

use std::ffi::OsStr;

use adio_dafs::error::Class;
use adio_dafs::file::delete;
use dafs_client::{Config, Direction, Url};
use dafs_stripe::Volume;
use dafs_tests::harness::{Harness, On};
use dafs_tests::on_sockets;
use dafs_tests::suite::bytes;

use crate::support::{RDWR, RDWR_CREATE, by_view, counter, name, open, opening, rows, run, segment, submit};
use crate::transfers::moved_in_every_mode;

on_sockets! {
    striped_segments_move_as_of_one_server_in_every_mode,
    hints_lay_a_file_over_servers_and_say_how_it_lies,
    rank_that_joins_reaches_all_servers,
    striped_file_is_read_written_and_sized_in_every_other_way,
    lost_data_server_is_an_error_that_names_it,
}

/// A metadata server, and two data servers.
fn cluster(on: On) -> (Harness, Vec<Harness>, Volume) {
    let (metadata, data) = (Harness::start(on), vec![Harness::start(on), Harness::start(on)]);
    let volume = Volume::connect(name(&metadata, on, ""), &Config::default()).unwrap();
    for (number, server) in (1..).zip(&data) {
        let url = Url::parse(OsStr::new(&name(server, on, ""))).unwrap();
        volume.add_server(&format!("io{number}"), &url).unwrap();
    }
    (metadata, data, volume)
}

fn piece_count(data: &[Harness]) -> usize {
    let pieces =
        |server: &Harness| std::fs::read_dir(server.data().join(".dafs-pieces")).unwrap().count() - 1;
    data.iter().map(pieces).sum()
}

const STRIPED: [(&str, &str); 2] = [("striping_factor", "2"), ("striping_unit", "4096")];

// [MPI-97]
fn striped_segments_move_as_of_one_server_in_every_mode(on: On) {
    let (metadata, data, volume) = cluster(on);
    let file = open(&name(&metadata, on, "f"), &STRIPED);
    let model = moved_in_every_mode(on, &file);
    assert_eq!((std::fs::metadata(metadata.data().join("f")).unwrap().len(), piece_count(&data)), (0, 2));
    let mut found = vec![0; model.len()];
    let plain = volume.open("f", dafs_client::OpenOptions::new().read(true)).unwrap();
    plain.read_exact_at(&mut found, 0).unwrap();
    assert!(found == model);
    assert!(counter(&file, "sieve_windows") > 0 && counter(&file, "lists") > 0);
}

// [MPI-97]
fn hints_lay_a_file_over_servers_and_say_how_it_lies(on: On) {
    let (metadata, data, volume) = cluster(on);
    let servers = |path: &str| volume.layout(path).unwrap().map(|layout| (layout.unit, layout.servers));
    let file = open(&name(&metadata, on, "plain"), &[]);
    assert_eq!(servers("plain"), None);
    drop(file);
    let hints = [("striping_factor", "0"), ("striping_unit", "65536"), ("start_iodevice", "1")];
    let file = open(&name(&metadata, on, "all"), &hints);
    let expected = vec!["io2".to_owned(), "io1".to_owned()];
    assert_eq!(servers("all"), Some((65_536, expected)));
    let shown = |key: &str| file.shown_hints().into_iter().find(|(own, _)| own == key).unwrap().1;
    assert_eq!((shown("striping_factor"), shown("striping_unit")), ("2".to_owned(), "65536".to_owned()));
    // What the export has not is passed over; a file that is there stays as it is.
    let one = open(&name(&metadata, on, "many"), &[("striping_factor", "9"), ("start_iodevice", "7")]);
    assert_eq!(servers("many").unwrap().1.len(), 2);
    drop((one, open(&name(&metadata, on, "plain"), &STRIPED)));
    assert_eq!(servers("plain"), None);
    let alone = Harness::start(on);
    let unstriped = open(&name(&alone, on, "f"), &STRIPED);
    run(&unstriped, Direction::Write, &[segment(&mut [1; 10], 0)]).unwrap();
    assert_eq!(std::fs::read(alone.data().join("f")).unwrap(), [1; 10]);
    for path in ["plain", "all", "many"] {
        delete(OsStr::new(&name(&metadata, on, path))).unwrap();
    }
    assert_eq!(piece_count(&data), 0);
}

fn rank_that_joins_reaches_all_servers(on: On) {
    let (metadata, _data, _) = cluster(on);
    let name = name(&metadata, on, "f");
    let first = open(&name, &STRIPED);
    let ticket = first.share().unwrap();
    let other = opening(&name, RDWR, &[]).join(&ticket).unwrap();
    let mut written = bytes(1, 50_000);
    assert_eq!(run(&other, Direction::Write, &[segment(&mut written, 777)]).unwrap(), 50_000);
    let mut found = vec![0; 50_000];
    assert_eq!(run(&first, Direction::Read, &[segment(&mut found, 777)]).unwrap(), 50_000);
    assert!(found == written);
    assert_eq!(other.size().unwrap(), 50_777);
    other.finish().unwrap();
}

fn striped_file_is_read_written_and_sized_in_every_other_way(on: On) {
    let (metadata, _data, _) = cluster(on);
    let file = open(&name(&metadata, on, "f"), &[&STRIPED[..], &[("dafs_method", "view")]].concat());
    file.preallocate(100_000).unwrap();
    assert_eq!(file.size().unwrap(), 100_000);
    file.resize(30_000).unwrap();
    assert!(file.reaches(29_999).unwrap() && !file.reaches(30_000).unwrap());
    // Without waiting: a segment, segments, a view.
    let mut written = bytes(1, 60_000);
    let (a, b) = written.split_at_mut(20_000);
    let mut request = submit(&file, Direction::Write, &[segment(a, 0), segment(b, 20_000)]).unwrap();
    request.wait();
    assert_eq!(request.outcome(), (60_000, Ok(())));
    let mut found = vec![0; 60_000];
    let mut request = submit(&file, Direction::Read, &[segment(&mut found, 0)]).unwrap();
    while !request.test() {}
    assert_eq!(request.outcome(), (60_000, Ok(())));
    assert!(found == written);
    drop(submit(&file, Direction::Read, &[segment(&mut found, 0)]).unwrap());
    let mut column = vec![0; 6_000];
    assert_eq!(file.run(rows(Direction::Read, &mut column, 100, (50, 1000))), (6_000, Ok(())));
    let expected: Vec<u8> = (0..60).flat_map(|row| &written[50 + row * 1000..][..100]).copied().collect();
    assert!(column == expected);
    let mut request = file.submit(by_view(Direction::Write, &mut [9; 100], 500)).unwrap();
    request.wait();
    assert_eq!(request.outcome(), (100, Ok(())));
    // Under locks.
    file.set_atomic(true).unwrap();
    assert_eq!(run(&file, Direction::Write, &[segment(&mut [7; 10], 4090)]).unwrap(), 10);
    assert_eq!(run(&file, Direction::Read, &[segment(&mut found[..20], 4085)]).unwrap(), 20);
    assert_eq!(found[5..15], [7; 10]);
    file.sync().unwrap();
}

fn lost_data_server_is_an_error_that_names_it(on: On) {
    let (metadata, mut data, _) = cluster(on);
    let name = name(&metadata, on, "f");
    let file = open(&name, &[&STRIPED[..], &[("start_iodevice", "0")]].concat());
    run(&file, Direction::Write, &[segment(&mut bytes(1, 20_000), 0)]).unwrap();
    std::fs::remove_dir_all(data[1].data().join(".dafs-pieces")).unwrap();
    data[1].restart();
    let fresh = opening(&name, RDWR_CREATE, &[]).open().unwrap();
    let mut found = vec![0; 4096];
    assert_eq!(run(&fresh, Direction::Read, &[segment(&mut found, 8192)]).unwrap(), 4096);
    let error = run(&fresh, Direction::Read, &[segment(&mut found, 4096)]).unwrap_err();
    assert!(error.message.contains("io2") && error.class == Class::Io, "{error:?}");
}
