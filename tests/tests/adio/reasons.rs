//! Writes that come short: the reason is that of the storage, whatever way the data goes.

use adio_dafs::error::Class;
use dafs_client::{Direction, Status};
use dafs_tests::faulty::{Fault, Kind};
use dafs_tests::harness::{Harness, On};
use dafs_tests::on_sockets;
use dafs_tests::suite::bytes;

use crate::support::{counter, describe_rows, in_blocks, name, open, requests};

on_sockets! {
    write_that_comes_short_fails_for_the_reason_of_the_storage,
    write_continues_by_lists_when_the_view_is_forgotten,
}

/// Of these the view shows one in two.
const BLOCK: usize = 4096;

// [MPI-77]
fn write_that_comes_short_fails_for_the_reason_of_the_storage(on: On) {
    let ways = [("list", "0"), ("list", "40"), ("view", "0"), ("multiple", "0")];
    for (status, class) in
        [(Status::QUOTA, Class::Quota), (Status::IO, Class::Io), (Status::NO_SPACE, Class::NoSpace)]
    {
        for (method, limit) in ways {
            for waits in [true, false] {
                let (harness, faults) = Harness::start_faulty(on, |_| {});
                let file =
                    open(&name(&harness, on, "f"), &[("dafs_method", method), ("dafs_list_max", limit)]);
                describe_rows(&file, BLOCK, 2 * BLOCK as i64);
                let mut memory = bytes(1, 100 * BLOCK);
                faults.next(Kind::Write, Fault::Short, 1);
                faults.next(Kind::Write, Fault::Fail(status), 10_000);
                let transfer = in_blocks(Direction::Write, &mut memory, BLOCK);
                let (moved, result) = if waits {
                    file.run(transfer)
                } else {
                    let mut request = file.submit(transfer).unwrap();
                    request.wait();
                    request.outcome()
                };
                let what = format!("{method} {limit} {waits}");
                assert_eq!(result.unwrap_err().class, class, "{what}");
                assert!(moved < memory.len() as u64, "{what}: {moved}");
            }
        }
    }
}

// [MPI-77]
fn write_continues_by_lists_when_the_view_is_forgotten(on: On) {
    // Small requests: not all of them are in flight at once.
    let mut harness = Harness::start_with(on, |config| config.transfer_size_max = 64 << 10);
    let session = harness.session();
    let file = open(&name(&harness, on, "f"), &[("dafs_method", "view")]);
    describe_rows(&file, BLOCK, 2 * BLOCK as i64);
    let mut memory = bytes(2, 32 << 20);
    let path = harness.data().join("f");
    let mut request = file.submit(in_blocks(Direction::Write, &mut memory, BLOCK)).unwrap();
    // It moves along by these tests alone.
    while std::fs::metadata(&path).unwrap().len() == 0 {
        assert!(!request.test(), "it takes more requests than may be in flight");
    }
    harness.restart_with(|config| config.limits.views_size_max = 1);
    request.wait();
    assert_eq!(request.outcome(), (memory.len() as u64, Ok(())));
    let written = std::fs::read(&path).unwrap();
    for (index, block) in memory.chunks(BLOCK).enumerate() {
        assert!(written[2 * index * BLOCK..][..BLOCK] == *block, "block {index}");
    }
    assert!(counter(&file, "views") > 0 && counter(&file, "lists") > 0);
    assert!(requests(&session, &["WriteList"]) > 0);
}
