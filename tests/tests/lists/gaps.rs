//! Reads of what lies between the extents of a list: nobody asked for it.

use std::io::IoSliceMut;

use dafs_client::{Config, Datatype, Extent, File, MethodOverride, OpenOptions, Session, Sieve, Status};
use dafs_tests::faulty::{Fault, Kind};
use dafs_tests::harness::{Harness, On};
use dafs_tests::on_each_provider;
use dafs_tests::suite::{assert_same, assert_status, bytes};

on_each_provider! {
    list_reads_what_can_be_read_beside_what_cannot,
    uncached_list_is_read_ahead_without_waiting,
}

const COUNT: u64 = 32;
const LEN: u64 = 512;

/// As dense as those that a client reads with their gaps.
fn extents() -> Vec<Extent> {
    (0..COUNT).map(|index| Extent::new(2 * LEN * index, LEN)).collect()
}

fn open(session: &Session) -> (File, Vec<u8>) {
    let root = session.mount("data").unwrap();
    let file = root.open_with("f", OpenOptions::new().read(true).write(true).create(true)).unwrap();
    let content = bytes(1, (2 * LEN * COUNT) as usize);
    file.write_all_at(&content, 0).unwrap();
    (file, content)
}

fn shown(content: &[u8]) -> Vec<u8> {
    content.chunks(2 * LEN as usize).flat_map(|pair| &pair[..LEN as usize]).copied().collect()
}

// [LIST-49] [LIST-50]
fn list_reads_what_can_be_read_beside_what_cannot(on: On) {
    let (harness, faults) = Harness::start_faulty(on, |_| {});
    for method in [MethodOverride::Auto, MethodOverride::Inline, MethodOverride::Direct] {
        let session = harness.session_with(&Config { method, ..Config::default() });
        let (file, content) = open(&session);
        let view = session.view(&Datatype::bytes(LEN).resized(0, 2 * LEN as i64)).unwrap();
        let read = |damaged: u64, waits: bool| {
            faults.damage(damaged..damaged + 1);
            let mut results = Vec::new();
            for is_list in [true, false] {
                if waits {
                    faults.next(Kind::Read, Fault::Pass, 1000);
                }
                let mut found = vec![0; (LEN * COUNT) as usize];
                let result = match is_list {
                    true => {
                        file.read_list(&extents(), &mut [IoSliceMut::new(&mut found)]).map(|read| read.count)
                    }
                    false => file.read_view(&view.at(0, 0), &mut found).map(|read| read.count),
                };
                faults.release();
                results.push(result.map(|count| found[..count].to_vec()));
            }
            results
        };
        for (sieve, waits) in
            [Sieve::Auto, Sieve::On, Sieve::Off].map(|sieve| [(sieve, false), (sieve, true)]).concat()
        {
            file.set_sieve(sieve);
            let what = format!("{method:?} {sieve:?} {waits}");
            for found in read(2 * LEN * 3 + LEN + 100, waits) {
                assert_same(&found.expect(&what), &shown(&content), &what);
            }
            for found in read(2 * LEN * 3 + 100, waits) {
                assert_status(found, Status::IO, &what);
            }
        }
        faults.damage(0..0);
    }
}

// [STOR-20]
fn uncached_list_is_read_ahead_without_waiting(on: On) {
    let (harness, faults) = Harness::start_faulty(on, |_| {});
    let session = harness.session_with(&Config { method: MethodOverride::Inline, ..Config::default() });
    let (file, content) = open(&session);
    file.set_sieve(Sieve::On);
    faults.claim_absent();
    let read = || {
        let mut found = vec![0; (LEN * COUNT) as usize];
        file.read_list(&extents(), &mut [IoSliceMut::new(&mut found)]).unwrap();
        assert_same(&found, &shown(&content), "what was read");
        faults.submitted()
    };
    // The first has to wait: so is the next expected to.
    faults.submitted();
    faults.next(Kind::Read, Fault::Pass, 1000);
    assert!(read().iter().all(|kind| *kind == Kind::Read));
    faults.release();
    // It ends while the advice is held, which went first.
    faults.next(Kind::Hint, Fault::Hold, 1);
    let submitted = read();
    assert_eq!((submitted[0], faults.held()), (Kind::Hint, 1), "{submitted:?}");
    assert!(submitted.len() > 1 && submitted[1..].iter().all(|kind| *kind == Kind::Read), "{submitted:?}");
    faults.release();
}
