//! Memory that cannot be read where the data of a request is to come from.
#![allow(unsafe_code, reason = "lends memory that may not be read")]

use dafs_client::{Config, Error, MethodOverride};
use dafs_tests::area::Area;
use dafs_tests::harness::{Harness, On};
use dafs_tests::on_sockets;
use dafs_tests::suite::bytes;

// A device refuses to register such memory.
on_sockets! {
    unreadable_memory_ends_its_session_alone,
}

const SIZE: usize = 256 * 1024;

// [CLI-45]
fn unreadable_memory_ends_its_session_alone(on: On) {
    let harness = Harness::start(on);
    let (session, other) = (
        harness.session_with(&Config { method: MethodOverride::Direct, ..Config::default() }),
        harness.session(),
    );
    let file = session.mount("data").unwrap().create("file").unwrap();
    let area = Area::new(SIZE);
    area.protect(0, SIZE, libc::PROT_NONE);
    // SAFETY: it stays mapped until the operation has ended; that it cannot be read is what is tested, and is the kernel's to find out.
    let pending = unsafe { file.submit_write_raw_at(area.pointer(), SIZE, 0) };
    let error = pending.wait().unwrap_err();
    assert!(matches!(error, Error::Connection { .. }), "{error}");
    assert!(error.to_string().contains("1000 times in a row"), "{error}");

    let file = other.mount("data").unwrap().create("other").unwrap();
    assert_eq!(file.write_at(&bytes(1, SIZE), 0).unwrap(), SIZE);
}
