//! `dafs cp` on a terminal: what its line says while the server is away, and how often bytes are counted.
#![allow(unsafe_code, reason = "makes a terminal")]

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::os::fd::{FromRawFd, OwnedFd};
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};

use dafs_tests::faulty::{Fault, Kind};
use dafs_tests::harness::{Harness, On};
use dafs_tests::on_sockets;
use dafs_tests::suite::{assert_same, bytes};

use crate::programs::command;

// Nothing of this depends on how the data travels.
on_sockets! {
    copy_over_a_restart_repeats_only_what_was_lost,
    copy_without_a_terminal_reports_a_lost_connection_once,
}

/// Both ends of a new terminal: the one that shows, and the one that programs write to.
fn terminal() -> (File, File) {
    let (mut shows, mut written) = (-1, -1);
    let size = libc::winsize { ws_row: 24, ws_col: 160, ws_xpixel: 0, ws_ypixel: 0 };
    let null = std::ptr::null_mut();
    // SAFETY: both numbers and the size are there for the call, and no name or settings are asked for.
    let made = unsafe { libc::openpty(&raw mut shows, &raw mut written, null, null.cast(), &raw const size) };
    assert_eq!(made, 0, "{}", std::io::Error::last_os_error());
    // SAFETY: they were just made, and are nobody else's.
    [shows, written].map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }).map(File::from).into()
}

const SIZE: usize = 300 << 20;

// [CMD-8] [CMD-9] [CMD-22] [CMD-23]
fn copy_over_a_restart_repeats_only_what_was_lost(on: On) {
    let (mut harness, faults) = Harness::start_faulty(on, |config| config.drain_ms = 1);
    let (source, data) = (harness.scratch().join("source"), bytes(1, SIZE));
    fs::write(&source, &data).unwrap();
    // What is made durable on the way is not written again; that of the end waits, and the restart loses what it is for.
    faults.next(Kind::Commit, Fault::Pass, 1);
    faults.next(Kind::Commit, Fault::Hold, usize::MAX);
    let (mut shows, written) = terminal();
    let on_socket = harness.url().starts_with("dafs+shm");
    let url = format!("{}{}/data/f", harness.url(), if on_socket { ":" } else { "" });
    let mut copy = command(["-v", "cp", source.to_str().unwrap(), &url]).stderr(written).spawn().unwrap();
    let shown = Arc::new(Mutex::new(String::new()));
    let seen = Arc::clone(&shown);
    let reader = std::thread::spawn(move || {
        let mut some = [0; 4096];
        // Its other end closes with the command.
        while let Ok(count @ 1..) = shows.read(&mut some) {
            seen.lock().unwrap().push_str(&String::from_utf8_lossy(&some[..count]));
        }
    });
    let ended = |copy: &mut Child| copy.try_wait().unwrap().is_some();
    // A disk that is slow may have kept it from moving before.
    while faults.held() == 0 {
        assert!(!ended(&mut copy), "{}", shown.lock().unwrap());
        std::thread::yield_now();
    }
    let before = shown.lock().unwrap().len();
    while !shown.lock().unwrap()[before..].contains("nothing has moved") {
        assert!(!ended(&mut copy), "{}", shown.lock().unwrap());
        std::thread::yield_now();
    }
    let waiting = shown.lock().unwrap()[before..].split_once("nothing has moved").unwrap().1.to_owned();
    assert!(!waiting.contains("ETA"), "an end was told while nothing moved: {waiting}");
    harness.restart();
    assert!(copy.wait().unwrap().success());
    reader.join().unwrap();
    let again = harness.session().statistics().unwrap().bytes_written.iter().sum::<u64>();
    let lost = SIZE - (256 << 20);
    assert!(again > 0, "nothing was written again");
    assert!(again <= 2 * lost as u64, "{again} bytes were written again, and no more than {lost} were lost");
    assert_same(&fs::read(harness.data().join("f")).unwrap(), &data, "the copy");
    let shown = shown.lock().unwrap();
    let counts = shown.match_indices(" MiB/300.00 MiB").filter_map(|(at, _)| {
        let number = shown[..at].rsplit(|c: char| !c.is_ascii_digit() && c != '.').next()?;
        number.parse::<f64>().ok()
    });
    let most = counts.fold(0.0, f64::max);
    assert!(most > 200.0 && most <= 300.0, "{most} MiB of 300 were counted");
    assert!(shown.contains("copied 1 file: 300.00 MiB"), "{shown}");
}

// [CMD-24] Takes the ten seconds after which it is told.
fn copy_without_a_terminal_reports_a_lost_connection_once(on: On) {
    let (mut harness, faults) = Harness::start_faulty(on, |config| config.drain_ms = 1);
    let (source, data) = (harness.scratch().join("source"), bytes(1, 3_000_000));
    fs::write(&source, &data).unwrap();
    faults.next(Kind::Write, Fault::Hold, usize::MAX);
    let on_socket = harness.url().starts_with("dafs+shm");
    let mut copies = ["--verbose", "--quiet"].map(|flag| {
        let url = format!("{}{}/data/f{flag}", harness.url(), if on_socket { ":" } else { "" });
        command(["cp", flag, source.to_str().unwrap(), &url]).stderr(Stdio::piped()).spawn().unwrap()
    });
    // Each has begun a file, and so has a session.
    while fs::read_dir(harness.data()).unwrap().count() < 2 {}
    faults.wait_for_held(2);
    harness.stop();
    let mut told = BufReader::new(copies[0].stderr.take().unwrap()).lines().map(Result::unwrap);
    let line = told.find(|line| line.contains("waiting")).expect("a line tells of it");
    assert!(line.contains("the connection is lost"), "{line}");
    harness.restart();
    let more: Vec<String> = told.collect();
    assert!(!more.iter().any(|line| line.contains("waiting")), "{more:?}");
    let [loud, quiet] = copies;
    let quiet = quiet.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&quiet.stderr);
    assert!(!said.contains("waiting"), "{said}");
    assert!(quiet.status.success() && loud.wait_with_output().unwrap().status.success());
    for flag in ["--verbose", "--quiet"] {
        assert_same(&fs::read(harness.data().join(format!("f{flag}"))).unwrap(), &data, flag);
    }
}
