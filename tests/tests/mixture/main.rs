//! Random operations in sessions with random settings, of servers with random settings, against a model of the file in memory. What no
//! single suite combines: methods that wait for few buffers, batches beside cancelled reads, one session of several threads.
//!
//! Clients and server give no signs of life of their own accord here, so an operation that is forgotten stays forgotten.
#![allow(clippy::cast_possible_truncation, reason = "sizes and counts that the tests choose")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "all of this is test code, helpers included")]

use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use dafs_client::{Background, Config, MethodOverride, Noncontiguous, Session, WaitPolicy};
use dafs_tests::harness::On;
use dafs_tests::on_each_provider;
use dafs_tests::program::Program;
use dafs_tests::suite::Numbers;
use player::Player;

mod data;
mod player;

on_each_provider! {
    clients_of_any_settings_find_what_they_wrote,
}

/// Operations of each client.
const ACTIONS: usize = 100;

/// Longer than any operation takes on the slowest machine: nothing is ever going to happen.
const STANDSTILL: Duration = Duration::from_secs(120);

// [CLI-10] [BATCH-4] [LIST-4] [BUF-2]
fn clients_of_any_settings_find_what_they_wrote(on: On) {
    for seed in 0..on.rounds(10) {
        let mut numbers = Numbers::new(seed);
        let flags = server_flags(&mut numbers);
        let program = Program::start(on, &flags);
        let (note, notes) = mpsc::channel();
        let mut workers = Vec::new();
        for client in 0..=numbers.below(3) {
            let session = program.session_with(&config(&mut numbers));
            // Some sessions are of two threads.
            for thread in 0..=u64::from(numbers.below(3) == 0) {
                let numbers = Numbers::new(numbers.next());
                let (session, note, name) =
                    (session.clone(), note.clone(), format!("of client {client}, thread {thread}"));
                workers.push(std::thread::spawn(move || play(&session, &name, numbers, &note)));
            }
        }
        drop(note);
        let mut last = String::new();
        loop {
            match notes.recv_timeout(STANDSTILL) {
                Ok(action) => last = action,
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    panic!("seed {seed}, server {flags:?}: nothing moves any more since {last}");
                }
            }
        }
        for worker in workers {
            assert!(worker.join().is_ok(), "seed {seed}, server {flags:?}, which said: {}", program.log());
        }
    }
}

fn play(session: &Session, name: &str, numbers: Numbers, note: &mpsc::Sender<String>) {
    let mut player = Player::new(session, name, numbers);
    for _ in 0..ACTIONS {
        let action = player.act();
        let _ = note.send(format!("{action} {name}"));
    }
    player.check_all();
    assert_eq!(session.reconnects(), 0);
}

fn server_flags(numbers: &mut Numbers) -> Vec<&'static str> {
    let mut flags = vec!["--keep-alive-ms", "3600000", "--lease-ms", "7200000", "--poll"];
    flags.push(numbers.one_of(&["event", "busy", "adaptive"]));
    let sets: [&[&str]; 4] = [
        &["--no-calibrate"],
        &["--pipeline-depth", "1"],
        &["--buffers-size-max", "2M", "--buffer-sizes", "16K,64K"],
        &["--storage-engine", "pool"],
    ];
    for set in sets {
        if numbers.below(2) == 0 {
            flags.extend(set);
        }
    }
    flags
}

fn config(numbers: &mut Numbers) -> Config {
    let (method, _) = numbers.one_of(&MethodOverride::ALL);
    Config {
        wait: numbers.one_of(&[WaitPolicy::Adaptive, WaitPolicy::Event, WaitPolicy::Busy]),
        credits: numbers.one_of(&[1, 2, 7, 64, 500]),
        method: numbers.one_of(&[MethodOverride::Auto, method]),
        noncontiguous: numbers.one_of(&[
            Noncontiguous::Multiple,
            Noncontiguous::Pack,
            Noncontiguous::Gather,
            Noncontiguous::default(),
        ]),
        inline_max: numbers.one_of(&[8256, 12_345, 16_384, 65_536]),
        bounce_size: numbers.one_of(&[64 << 10, 300_000, 4 << 20]),
        eager_buffer_count: numbers.one_of(&[1, 3, 8]),
        eager_buffer_size: numbers.one_of(&[4096, 64 << 10, 256 << 10]),
        background: numbers.one_of(&[Background::None, Background::KeepAlive, Background::Progress]),
        coalesce_submits: numbers.below(2) == 0,
        ..Config::default()
    }
}
