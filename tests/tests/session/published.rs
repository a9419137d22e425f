//! Crossovers that clients publish: who may, for whom they are, and how long.

use std::sync::Arc;

use dafs_client::{
    Config, Crossovers, Direction, Key, Refinement, Registration, Session, Status, Thresholds,
};
use dafs_server::access::KeyEntry;
use dafs_tests::harness::{Harness, On};
use dafs_tests::on_each_provider_and_three_workers;
use dafs_tests::suite::assert_status;

on_each_provider_and_three_workers! {
    published_crossovers_are_exported_to_holders_of_the_same_key_alone,
    published_crossovers_hold_after_a_restart,
    crossovers_beyond_messages_are_refused,
    first_transfers_of_a_session_refine_the_crossovers,
}

fn key(name: &str) -> Key {
    Key { name: name.to_owned(), secret: Arc::from(name.repeat(32).into_bytes()) }
}

fn with_keys(config: &mut dafs_server::config::Config) {
    for (name, publishes) in [("a", true), ("b", true), ("c", false)] {
        config.access.keys.insert(KeyEntry { key: key(name), forced: None, publishes });
    }
}

fn session(harness: &Harness, name: &str) -> Session {
    harness.session_with(&Config { key: Some(key(name)), ..Config::default() })
}

/// What a new session is told, which is what one that asks is told.
fn told(harness: &Harness, name: &str) -> Thresholds {
    let session = session(harness, name);
    let thresholds = session.agreed().thresholds;
    assert_eq!(session.limits().unwrap().thresholds, thresholds);
    thresholds
}

fn sizes(first: u32) -> Crossovers {
    Crossovers {
        read_registered: first,
        read_unregistered: first + 1,
        write_registered: first + 2,
        write_unregistered: first + 3,
    }
}

// [ACC-171] [ACC-173] [ACC-174]
fn published_crossovers_are_exported_to_holders_of_the_same_key_alone(on: On) {
    let harness = Harness::start_with(on, with_keys);
    let measured = told(&harness, "a").crossovers;
    let before = session(&harness, "a");
    before.publish(sizes(1000)).unwrap();
    assert_eq!(told(&harness, "a").crossovers, sizes(1000));
    assert_eq!(before.limits().unwrap().thresholds.crossovers, sizes(1000), "a session that was there");
    let without = || harness.session().agreed().thresholds.crossovers;
    assert_eq!(told(&harness, "b").crossovers, measured, "a foreign key's");
    assert_eq!(without(), measured, "those without this key");
    assert_status(session(&harness, "c").publish(sizes(2000)), Status::PERMISSION, "a key without the right");
    session(&harness, "b").publish(sizes(3000)).unwrap();
    let all = ["a", "b", "c"].map(|name| told(&harness, name).crossovers);
    assert_eq!(all, [sizes(1000), sizes(3000), measured]);
    if on.is_verbs() {
        // Nobody is there without a key, and this one has no right.
        assert_status(harness.session().publish(sizes(4000)), Status::PERMISSION, "the key of the tests");
        return;
    }
    harness.session().publish(sizes(4000)).unwrap();
    assert_eq!(without(), sizes(4000));
    assert_eq!(told(&harness, "a").crossovers, sizes(1000));
}

// [STATE-8]
fn published_crossovers_hold_after_a_restart(on: On) {
    let directory = tempfile::tempdir().unwrap();
    let mut harness = Harness::start_with(on, |config| {
        with_keys(config);
        config.state_file = Some(directory.path().join("state"));
    });
    session(&harness, "a").publish(sizes(7)).unwrap();
    session(&harness, "b").publish(sizes(9)).unwrap();
    session(&harness, "a").publish(sizes(1000)).unwrap();
    harness.restart();
    assert_eq!(["a", "b"].map(|name| told(&harness, name).crossovers), [sizes(1000), sizes(9)]);
    harness.restart_with(|config| config.inline_max = 512);
    let cut = told(&harness, "a");
    assert!(cut.read_inline_max <= 512, "{cut:?}");
    assert_eq!(cut.crossovers.read_registered, cut.read_inline_max + 1);
}

// [ACC-172]
fn crossovers_beyond_messages_are_refused(on: On) {
    let harness = Harness::start_with(on, with_keys);
    let session = session(&harness, "a");
    let Thresholds { read_inline_max, write_inline_max, crossovers } = session.agreed().thresholds;
    let never = Crossovers {
        read_registered: read_inline_max + 1,
        read_unregistered: read_inline_max + 1,
        write_registered: write_inline_max + 1,
        write_unregistered: write_inline_max + 1,
    };
    for wrong in [
        Crossovers { read_registered: 0, ..never },
        Crossovers { write_unregistered: 0, ..never },
        Crossovers { read_registered: read_inline_max + 2, ..never },
        Crossovers { read_unregistered: u32::MAX, ..never },
        Crossovers { write_registered: write_inline_max + 2, ..never },
    ] {
        assert_status(session.publish(wrong), Status::INVALID, &format!("{wrong:?}"));
    }
    assert_eq!(told(&harness, "a").crossovers, crossovers);
    session.publish(never).unwrap();
    assert_eq!(told(&harness, "a").crossovers, never);
}

// [CLI-202] [CLI-203]
fn first_transfers_of_a_session_refine_the_crossovers(on: On) {
    let harness = Harness::start(on);
    for (refinement, is_told) in [(Refinement::Always, true), (Refinement::Never, false)] {
        let session = harness.session_with(&Config { refinement, ..Config::default() });
        let file = session.mount("mem").unwrap().create("f").unwrap();
        let explained = |direction| session.explain(direction, 8192, Registration::Ordinary);
        for number in 0..20u8 {
            let data = [number; 8192];
            file.write_all_at(&data, 0).unwrap();
            let mut found = [0xff; 8192];
            file.read_exact_at(&mut found, 0).unwrap();
            assert_eq!(found, data);
        }
        for direction in [Direction::Read, Direction::Write] {
            let words = explained(direction);
            assert_eq!(words.contains("here it took"), is_told, "{refinement:?}: {words}");
        }
    }
}
