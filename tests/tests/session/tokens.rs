//! Many sessions open one file by a token, with one open at the server.

use std::sync::Arc;
use std::time::Duration;

use dafs_client::{
    Config, Error, Export, FenceList, File, Identity, Key, OpenOptions, Session, Status, Token,
};
use dafs_proto::transport::Address;
use dafs_proto::wire::{Features, TOKEN_SIZE};
use dafs_server::access::{ForcedIdentity, IdentityMapping, KeyEntry};
use dafs_tests::harness::{Harness, On};
use dafs_tests::on_each_provider_and_three_workers;
use dafs_tests::suite::{EXPORTS, assert_invalid, assert_same, assert_status, bytes};

use crate::cuts::wait_for;

on_each_provider_and_three_workers! {
    sessions_that_open_by_a_token_share_one_open,
    file_stays_open_while_it_has_a_handle_or_token,
    token_allows_what_it_was_made_for_and_no_more,
    token_of_a_session_that_ended_is_unknown,
    expired_token_is_unknown_and_releases_its_file,
    tokens_of_a_session_are_bounded,
    token_is_unknown_to_holders_of_another_key_and_in_another_export,
    fenced_client_neither_shares_nor_opens_by_a_token,
    token_of_a_read_only_export_reads,
    server_without_tokens_is_asked_for_none,
}

/// Identities that clients claim; elsewhere the kernel knows better.
mod by_claim {
    mod tcp {
        #[test]
        fn token_is_unknown_to_who_acts_as_another_user_or_group() {
            super::super::other_identity();
        }
    }
}

/// For as long as the server lets a token live.
pub(crate) const LONG: Duration = Duration::ZERO;

pub(crate) fn read_write() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    options
}

/// How often the server has answered requests of this name.
pub(crate) fn count(session: &Session, operation: &str) -> u64 {
    let operations = session.statistics().unwrap().operations;
    operations.into_iter().find(|(name, _)| name == operation).map_or(0, |(_, count)| count)
}

fn shared(file: &File) -> Token {
    file.share(true, true, LONG).unwrap()
}

// [SESS-72] [SESS-111] [SESS-113]
fn sessions_that_open_by_a_token_share_one_open(on: On) {
    const OTHERS: usize = 6;
    const PART: usize = 30_000;
    let (harness, faults) = Harness::start_faulty(on, |_| {});
    for (export, round) in EXPORTS.into_iter().zip(1..) {
        let first = harness.session();
        let root = first.mount(export).unwrap();
        root.create_dir("d", 0o755).unwrap();
        let file = root.create("d/f").unwrap();
        let size = OTHERS * PART;
        file.truncate(size as u64).unwrap();
        let token = Token::from_bytes(shared(&file).as_bytes()).unwrap();
        let others: Vec<(Session, File, Export)> = (0..OTHERS)
            .map(|_| {
                let session = harness.session();
                let root = session.mount(export).unwrap();
                // What makes and cuts a file is left out.
                let mut options = read_write();
                options.create_new(true);
                let opened = root.open_token(&token, "/d/f", options.truncate(true)).unwrap();
                assert_eq!(opened.attributes_at_open().size, size as u64);
                assert_eq!(opened.attributes_at_open().file_id, file.metadata().unwrap().file_id);
                assert_eq!(opened.path(), b"d/f");
                (session, opened, root)
            })
            .collect();
        wait_for(|| count(&first, "OpenToken") == round * OTHERS as u64);
        assert_eq!((count(&first, "Open"), count(&first, "Share")), (round, round));
        assert_eq!(faults.open_nodes(), 1, "one file is open");
        for ((_, other, _), part) in others.iter().zip(0u64..) {
            other.write_all_at(&bytes(part, PART), part * PART as u64).unwrap();
        }
        let expected: Vec<u8> = (0..OTHERS as u64).flat_map(|part| bytes(part, PART)).collect();
        let mut found = vec![0; size];
        for (_, other, _) in &others {
            found.fill(0);
            other.read_exact_at(&mut found, 0).unwrap();
            assert_same(&found, &expected, "what all have written");
        }
        // Who made the token closes the file, and then all that it has.
        drop(file);
        wait_for(|| first.statistics().unwrap().handles == 1 + 2 * OTHERS as u64);
        others[0].1.write_all_at(b"after", 5).unwrap();
        first.close();
        wait_for(|| others[0].0.statistics().unwrap().sessions == OTHERS as u64);
        let mut found = [0; 5];
        others[1].1.read_exact_at(&mut found, 5).unwrap();
        assert_eq!(&found, b"after");
        others[2].1.append(b"more").unwrap();
        others[3].1.commit().unwrap();
        assert_eq!(others[4].1.metadata().unwrap().size, size as u64 + 4);
        assert_eq!(faults.open_nodes(), 1);
        drop(others);
        wait_for(|| faults.open_nodes() == 0);
    }
}

// [SESS-75]
fn file_stays_open_while_it_has_a_handle_or_token(on: On) {
    let (harness, faults) = Harness::start_faulty(on, |_| {});
    let second = harness.session();
    let handles = || second.statistics().unwrap().handles;
    for export in EXPORTS {
        let first = harness.session();
        let (root, other) = (first.mount(export).unwrap(), second.mount(export).unwrap());
        let file = root.create("f").unwrap();
        file.write_all_at(b"without a name", 0).unwrap();
        let token = shared(&file);
        root.remove_file("f").unwrap();
        drop(file);
        first.ping().unwrap();
        wait_for(|| handles() == 2);
        assert_eq!(faults.open_nodes(), 1, "the token holds it");
        let opened = other.open_token(&token, "f", &read_write()).unwrap();
        let again = other.open_token(&token, "f", &read_write()).unwrap();
        drop(opened);
        wait_for(|| handles() == 3);
        let mut found = [0; 14];
        again.read_exact_at(&mut found, 0).unwrap();
        assert_eq!(&found, b"without a name");
        assert_eq!(other.open("f").unwrap_err().status(), Some(Status::NOT_FOUND));
        // Opened by an operation whose result nobody collects.
        drop(other.submit_open_token(&token, "f", &read_write()));
        wait_for(|| handles() == 3);
        first.close();
        wait_for(|| second.statistics().unwrap().sessions == 1);
        again.read_exact_at(&mut found, 0).unwrap();
        assert_eq!(faults.open_nodes(), 1, "a handle holds it");
        drop((again, other));
        wait_for(|| handles() == 0);
        assert_eq!(faults.open_nodes(), 0);
    }
}

// [SESS-70] [SESS-72]
fn token_allows_what_it_was_made_for_and_no_more(on: On) {
    let harness = Harness::start(on);
    let (first, second) = (harness.session(), harness.session());
    let (root, other) = (first.mount("data").unwrap(), second.mount("data").unwrap());
    let file = root.create("f").unwrap();
    file.write_all_at(b"data", 0).unwrap();
    assert_invalid(file.share(false, false, LONG), "a token for nothing");
    let mut found = [0; 4];

    let token = file.share(true, false, LONG).unwrap();
    let reader = other.open_token(&token, "f", &read_write()).unwrap();
    reader.read_exact_at(&mut found, 0).unwrap();
    assert_eq!(&found, b"data");
    assert_status(reader.write_at(b"x", 0), Status::BAD_HANDLE, "a write by a token to read by");
    assert_status(reader.append(b"x"), Status::BAD_HANDLE, "an append");
    assert_status(reader.truncate(0), Status::BAD_HANDLE, "cutting");
    assert_status(reader.share(true, true, LONG), Status::BAD_HANDLE, "more than it has");
    assert_status(reader.share(false, true, LONG), Status::BAD_HANDLE, "what it has not");
    // What was opened by a token is shared as anything that is open.
    let third = harness.session();
    let again = third.mount("data").unwrap().open_token(
        &reader.share(true, false, LONG).unwrap(),
        "f",
        &read_write(),
    );
    again.unwrap().read_exact_at(&mut found, 0).unwrap();

    let token = file.share(false, true, LONG).unwrap();
    let writer = other.open_token(&token, "f", &read_write()).unwrap();
    writer.write_all_at(b"DATA", 0).unwrap();
    assert_status(writer.read_at(&mut found, 0), Status::BAD_HANDLE, "a read by a token to write by");
    file.read_exact_at(&mut found, 0).unwrap();
    assert_eq!(&found, b"DATA");

    let only_read = root.open("f").unwrap();
    assert_status(only_read.share(true, true, LONG), Status::BAD_HANDLE, "more than its handle has");
    only_read.share(true, false, LONG).unwrap();
    let only_written = root.open_with("f", OpenOptions::new().write(true)).unwrap();
    assert_status(only_written.share(true, false, LONG), Status::BAD_HANDLE, "what its handle has not");
    only_written.share(false, true, LONG).unwrap();
}

// [SESS-112]
fn token_of_a_session_that_ended_is_unknown(on: On) {
    let (harness, faults) = Harness::start_faulty(on, |_| {});
    let (first, second) = (harness.session(), harness.session());
    let token = shared(&first.mount("mem").unwrap().create("f").unwrap());
    let other = second.mount("mem").unwrap();
    drop(other.open_token(&token, "f", &read_write()).unwrap());
    first.close();
    wait_for(|| second.statistics().unwrap().sessions == 1);
    assert_status(other.open_token(&token, "f", &read_write()), Status::NO_TOKEN, "its session has ended");
    wait_for(|| faults.open_nodes() == 0);
    // Another session may have the place in the server's table.
    let third = harness.session();
    let made = third.mount("mem").unwrap().open_with("f", &read_write()).unwrap();
    assert_status(other.open_token(&token, "f", &read_write()), Status::NO_TOKEN, "another's place");
    other.open_token(&shared(&made), "f", &read_write()).unwrap();
}

// [SESS-74] [SESS-112]
fn expired_token_is_unknown_and_releases_its_file(on: On) {
    let (harness, faults) = Harness::start_faulty(on, |_| {});
    let (first, second) = (harness.session(), harness.session());
    let (root, other) = (first.mount("mem").unwrap(), second.mount("mem").unwrap());
    let short = Duration::from_nanos(1);
    // A reader finds it over, and what it has opened stays.
    let file = root.create("f").unwrap();
    file.write_all_at(b"data", 0).unwrap();
    let (token, long) = (file.share(true, true, short).unwrap(), shared(&file));
    let opened = other.open_token(&long, "f", &read_write()).unwrap();
    wait_for(|| match other.open_token(&token, "f", &read_write()) {
        Ok(_) => false,
        Err(Error::Status { status: Status::NO_TOKEN, .. }) => true,
        Err(error) => panic!("{error}"),
    });
    opened.write_all_at(b"DATA", 0).unwrap();
    drop(other.open_token(&long, "f", &read_write()).unwrap());
    // Nobody asks: the server ends it by itself.
    let alone = root.create("alone").unwrap();
    alone.share(true, false, short).unwrap();
    drop(alone);
    first.ping().unwrap();
    wait_for(|| faults.open_nodes() == 1);
}

// [SESS-76]
fn tokens_of_a_session_are_bounded(on: On) {
    let (harness, faults) = Harness::start_faulty(on, |_| {});
    let (first, second) = (harness.session(), harness.session());
    let (root, other) = (first.mount("mem").unwrap(), second.mount("mem").unwrap());
    let file = root.create("f").unwrap();
    let tokens: Vec<Token> = (0..64).map(|_| shared(&file)).collect();
    assert_status(file.share(true, true, LONG), Status::TOO_MANY_OPEN, "the 65th token");
    let opened: Vec<File> =
        tokens.iter().map(|token| other.open_token(token, "f", &read_write()).unwrap()).collect();
    // The bound is each session's own, and those whose time is over count no more.
    let short = Duration::from_millis(1);
    let is_shared = || match opened[0].share(true, false, short) {
        Ok(_) => true,
        Err(error) => {
            assert_eq!(error.status(), Some(Status::TOO_MANY_OPEN));
            false
        }
    };
    (0..200).for_each(|_| wait_for(is_shared));
    first.close();
    second.close();
    wait_for(|| faults.open_nodes() == 0);
}

fn key(name: &str, seed: u8) -> Key {
    Key { name: name.to_owned(), secret: Arc::from([seed; 32]) }
}

fn with_keys(config: &mut dafs_server::config::Config) {
    for (name, seed) in [("team", 1), ("others", 2)] {
        config.access.keys.insert(KeyEntry { key: key(name, seed), forced: None, publishes: false });
    }
}

// [SESS-73]
fn token_is_unknown_to_holders_of_another_key_and_in_another_export(on: On) {
    let harness = Harness::start_with(on, |config| {
        with_keys(config);
        // All act as the same user: the keys alone tell them apart.
        config.exports.iter_mut().for_each(|export| export.squash = IdentityMapping::Server);
    });
    let session = |key: Option<Key>| harness.session_with(&Config { key, ..Config::default() });
    let team = || session(Some(key("team", 1)));
    let (first, second) = (team(), team());
    let file = first.mount("mem").unwrap().create("f").unwrap();
    let token = shared(&file);
    for (other, export, who) in [
        (session(None), "mem", "without the key"),
        (session(Some(key("others", 2))), "mem", "with another key"),
        (second.clone(), "data", "in another export"),
    ] {
        let root = other.mount(export).unwrap();
        assert_status(root.open_token(&token, "f", &read_write()), Status::NO_TOKEN, who);
    }
    second.mount("mem").unwrap().open_token(&token, "f", &read_write()).unwrap();
    // Who proved no key shares with who proved none.
    let without = session(None);
    let token = shared(&without.mount("mem").unwrap().create("g").unwrap());
    session(None).mount("mem").unwrap().open_token(&token, "g", &read_write()).unwrap();
    let root = second.mount("mem").unwrap();
    assert_status(root.open_token(&token, "g", &read_write()), Status::NO_TOKEN, "with a key");
}

// [SESS-73]
fn other_identity() {
    // Of clients over loopback the kernel knows who they are; of others the claim of who holds a key counts.
    let harness = Harness::start_with(On::Tcp, |config| {
        with_keys(config);
        let forced = Some(ForcedIdentity { uid: 0, gid: 0 });
        config.access.keys.insert(KeyEntry { key: key("root", 9), forced, publishes: false });
        config.listeners = vec![Address::Tcp("0.0.0.0:0".parse().unwrap())];
    });
    let Address::Tcp(address) = harness.address() else { panic!("a tcp listener") };
    let url = format!("dafs+tcp://127.0.0.1:{}", address.port());
    let holder = |name, seed, uid, gid, groups: &[u32]| {
        let identity = Some(Identity { uid, gid, groups: groups.to_vec() });
        let config = Config { key: Some(key(name, seed)), identity, ..Config::default() };
        Session::connect(&url, &config).unwrap()
    };
    let session = |uid, gid, groups: &[u32]| holder("team", 1, uid, gid, groups);
    let administrator = holder("root", 9, 0, 0, &[]);
    administrator.mount("mem").unwrap().create_dir("d", 0o777).unwrap();
    let first = session(77, 88, &[1, 2]);
    let token = shared(&first.mount("mem").unwrap().create("d/f").unwrap());
    for (uid, gid, groups) in [(78, 88, &[1, 2][..]), (77, 89, &[1, 2]), (77, 88, &[1]), (77, 88, &[1, 2, 3])]
    {
        let root = session(uid, gid, groups).mount("mem").unwrap();
        let answer = root.open_token(&token, "d/f", &read_write());
        assert_status(answer, Status::NO_TOKEN, &format!("{uid} {gid} {groups:?}"));
    }
    let same = session(77, 88, &[2, 1]);
    same.mount("mem").unwrap().open_token(&token, "d/f", &read_write()).unwrap();
}

// [SESS-77]
fn fenced_client_neither_shares_nor_opens_by_a_token(on: On) {
    let (harness, faults) = Harness::start_faulty(on, |_| {});
    let administrator = harness.session();
    let config = |id: u8| Config { client_id: Some([id; 16]), ..Config::default() };
    let (bad, good) = (harness.session_with(&config(1)), harness.session_with(&config(2)));
    let admin = administrator.mount("mem").unwrap();
    let (bad_root, good_root) = (bad.mount("mem").unwrap(), good.mount("mem").unwrap());
    let file = bad_root.create("f").unwrap();
    let token = shared(&file);
    admin.set_fence_list(&FenceList::of_clients(&[[1; 16]])).unwrap();
    assert_status(file.share(true, true, LONG), Status::FENCED, "a share");
    assert_status(
        bad_root.open_token(&token, "f", &read_write()),
        Status::FENCED,
        "an open by its own token",
    );
    let opened = good_root.open_token(&token, "f", &read_write()).unwrap();
    let good_token = shared(&opened);
    assert_status(bad_root.open_token(&good_token, "f", &read_write()), Status::FENCED, "by another's");
    // What it opened by a token is fenced as anything that it has open.
    admin.set_fence_list(&FenceList::of_clients(&[])).unwrap();
    let again = bad_root.open_token(&good_token, "f", &read_write()).unwrap();
    admin.set_fence_list(&FenceList::of_clients(&[[1; 16]])).unwrap();
    assert_status(again.write_at(b"x", 0), Status::FENCED, "a write");
    opened.write_all_at(b"good", 0).unwrap();
    assert_eq!(faults.open_nodes(), 1);
}

// [SESS-114]
fn token_of_a_read_only_export_reads(on: On) {
    let harness = Harness::start_with(on, |config| config.exports[0].read_only = true);
    std::fs::write(harness.data().join("f"), b"data").unwrap();
    let (first, second) = (harness.session(), harness.session());
    let file = first.mount("data").unwrap().open("f").unwrap();
    assert_status(file.share(true, true, LONG), Status::BAD_HANDLE, "to write");
    let token = file.share(true, false, LONG).unwrap();
    let opened =
        second.mount("data").unwrap().open_token(&token, "f", OpenOptions::new().read(true)).unwrap();
    let mut found = [0; 4];
    opened.read_exact_at(&mut found, 0).unwrap();
    assert_eq!(&found, b"data");
}

// [CLI-52] [SESS-84]
fn server_without_tokens_is_asked_for_none(on: On) {
    let harness = Harness::start_with(on, |config| config.features = Features::all() - Features::TOKENS);
    let session = harness.session();
    let root = session.mount("mem").unwrap();
    let file = root.create("f").unwrap();
    assert_status(file.share(true, true, LONG), Status::NOT_SUPPORTED, "a share");
    assert_status(file.submit_share(true, true, LONG).wait(), Status::NOT_SUPPORTED, "a share");
    let token = Token::from_bytes(&[1; TOKEN_SIZE]).unwrap();
    let error = root.open_token(&token, "f", &read_write()).unwrap_err();
    assert_eq!(error.status(), Some(Status::NOT_SUPPORTED));
    assert!(error.to_string().contains("does not support tokens; open the file by its path"), "{error}");
    assert_eq!((count(&session, "Share"), count(&session, "OpenToken")), (0, 0), "nothing was sent");
    root.open("f").unwrap();
}
