//! Several servers: a client goes on with the next, and believes what that says became of its requests.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dafs_client::{
    Config, Error, Export, File, LockKind, Opcode, OpenOptions, ReconnectPolicy, Session, Stability,
    XattrSetMode,
};
use dafs_proto::wire::{
    ClusterTerms, Features, Flags, Header, OutcomeReply, SlotOutcome, Status, Welcome, encode_message_pack,
};
use dafs_tests::sim::{Action, Greeting, ScriptedWorld};

/// What a server says, of which this is the other.
fn cluster(welcome: &mut Welcome, servers: &[&str], outcomes: Option<Vec<SlotOutcome>>) {
    welcome.features |= Features::CLUSTER.bits();
    let servers = servers.iter().map(|server| (*server).to_owned()).collect();
    welcome.cluster = Some(ClusterTerms { term_ms: 1500, servers, outcomes });
}

/// Two servers, 1 and 2, that name each other. The first server runs, at both ports or at one.
fn world(ports: &[u32]) -> ScriptedWorld {
    let world = ScriptedWorld::new(2);
    world.listen_at(ports);
    world.restart();
    world.greet(|Greeting { port, welcome, .. }| {
        let other = format!("dafs+sim://{}", 3 - port);
        cluster(welcome, &[&other], None);
        Status::OK
    });
    world
}

/// A session that was begun at port 1, and an export of it.
fn begun(world: &ScriptedWorld) -> (Session, Export) {
    let session = world.connect_to(&[1], &ScriptedWorld::config()).unwrap();
    let export = session.mount("data").unwrap();
    (session, export)
}

fn millis(duration: Duration) -> u128 {
    duration.as_millis()
}

// [CLI-205]
#[test]
fn first_server_that_gives_a_session_has_it() {
    let world = world(&[2, 3]);
    world.greet(|Greeting { port, .. }| if port == 2 { Status::SERVER_FULL } else { Status::OK });
    let session = world.connect_to(&[1, 2, 3], &ScriptedWorld::config()).unwrap();
    assert_eq!(session.address().to_string(), "dafs+sim://3");
    world.greet(|_| Status::DRAINING);
    let error = world.connect_to(&[1, 2, 3], &ScriptedWorld::config()).unwrap_err().to_string();
    for server in ["dafs+sim://1: ", "dafs+sim://2: ", "dafs+sim://3: "] {
        assert!(error.contains(server), "{error}");
    }
}

// [CLI-206]
#[test]
fn servers_that_say_again_are_asked_until_one_gives_a_session() {
    let world = world(&[2]);
    let mut refusals = 5;
    world.greet(move |_| {
        refusals -= 1;
        if refusals > 0 { Status::AGAIN } else { Status::OK }
    });
    world.connect_to(&[1, 2], &ScriptedWorld::config()).unwrap();
    world.greet(|_| Status::AGAIN);
    let config = Config { connect_timeout: Duration::from_secs(2), ..ScriptedWorld::config() };
    let before = world.net().now();
    assert!(world.connect_to(&[1, 2], &config).is_err());
    let took = millis(world.net().now() - before);
    assert!((1800..2300).contains(&took), "{took} ms");
}

// [CLI-207] [SESS-144]
#[test]
fn files_and_locks_go_on_at_the_next_server() {
    for in_flight in [false, true] {
        let world = world(&[1]);
        world.put("f", b"12345678");
        let (session, export) = begun(&world);
        let file = export.open_with("f", OpenOptions::new().read(true).write(true)).unwrap();
        file.lock(0..4, LockKind::Exclusive).unwrap();
        world.listen_at(&[2]);
        match in_flight {
            true => world.once(Opcode::Read, |_| Action::CrashBefore),
            false => world.restart(),
        }
        let mut bytes = [0; 8];
        file.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!((&bytes, session.address().to_string()), (b"12345678", "dafs+sim://2".to_owned()));
        assert_eq!(session.agreed().servers, ["dafs+sim://1"]);
        // And back, where it is told.
        world.listen_at(&[1]);
        world.restart();
        file.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(session.address().to_string(), "dafs+sim://1");
    }
}

// [CLI-207]
#[test]
fn server_that_refuses_a_lost_session_makes_the_next_be_asked() {
    for refusal in [Status::AGAIN, Status::DRAINING, Status::SERVER_FULL, Status::NO_SESSION] {
        let world = world(&[1, 2]);
        let (session, _) = begun(&world);
        let asked = Arc::new(Mutex::new(Vec::new()));
        let told = Arc::clone(&asked);
        world.greet(move |Greeting { port, welcome, resume }| {
            told.lock().unwrap().push((port, resume.is_some()));
            cluster(welcome, &["dafs+sim://1", "dafs+sim://2"], None);
            if port == 1 { refusal } else { Status::OK }
        });
        world.restart();
        session.ping().unwrap();
        assert_eq!(*asked.lock().unwrap(), [(1, true), (2, true)], "{refusal}");
        assert_eq!(session.reconnects(), 1);
    }
}

// [CLI-101] [CLI-209] [CLI-33]
#[test]
fn pauses_come_after_a_whole_round_and_are_short() {
    let world = world(&[1, 2]);
    let policy = ReconnectPolicy { attempts_max: 9, ..ReconnectPolicy::default() };
    let (session, asked) = {
        let config = Config { reconnect: policy, ..ScriptedWorld::config() };
        (world.connect_to(&[1, 2], &config).unwrap(), Arc::new(Mutex::new(Vec::new())))
    };
    let (told, net) = (Arc::clone(&asked), world.net().clone());
    world.greet(move |Greeting { port, .. }| {
        told.lock().unwrap().push((port, net.now()));
        Status::AGAIN
    });
    world.restart();
    let error = session.ping().unwrap_err();
    assert!(matches!(&error, Error::Connection { cause, .. } if cause.contains("9 attempts")), "{error}");
    let asked = asked.lock().unwrap();
    let rounds: Vec<_> = asked.chunks(2).map(|round| [round[0].0, round[1].0]).collect();
    assert!(rounds.iter().all(|round| *round == [1, 2]));
    // 10, 20, 40, 80, 160, 320, 640 and 1,000 ms, the last three in pieces of 200 ms at most.
    let pauses: Vec<_> = asked.chunks(2).map(|round| millis(round[0].1)).collect();
    let pauses: Vec<_> = pauses.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert_eq!(pauses.len(), 5 + 2 + 4 + 5);
    for (pause, expected) in pauses.iter().zip([10, 20, 40, 80, 160, 200, 120, 200, 200, 200, 40, 200]) {
        assert!((expected..expected + 5).contains(pause), "{pauses:?}");
    }
    assert!(pauses.iter().all(|pause| *pause < 205), "{pauses:?}");
}

// [SESS-146] [CLI-34]
#[test]
fn silent_server_of_several_is_given_up_after_its_term() {
    let world = world(&[1, 2]);
    let (session, _) = begun(&world);
    assert_eq!((session.agreed().term_ms, session.agreed().keep_alive_ms), (Some(1500), 500));
    // From now on nothing that is sent to it arrives, until it is asked to resume the session.
    let is_silent = Arc::new(AtomicBool::new(true));
    let resumes = Arc::clone(&is_silent);
    world.greet(move |Greeting { welcome, resume, .. }| {
        resumes.store(resume.is_none(), Ordering::Relaxed);
        cluster(welcome, &["dafs+sim://2"], None);
        Status::OK
    });
    world.hook(move |_| if is_silent.load(Ordering::Relaxed) { Action::Ignore } else { Action::Serve });
    let before = world.net().now();
    session.ping().unwrap();
    let took = millis(world.net().now() - before);
    // It looks at the time eight times in a term, and may date twice what it has sent by its next look.
    assert!((1500..1500 + 3 * 188).contains(&took), "{took} ms");
    assert_eq!(session.reconnects(), 1);
    // What was asked, and while it waited a message every 500 ms.
    assert!(world.count(Opcode::Null) >= 3);
}

// [SESS-42] [SESS-146]
#[test]
fn living_server_is_not_given_up_while_a_reply_takes_long() {
    let world = world(&[1, 2]);
    let (session, export) = begun(&world);
    world.put("f", b"12345678");
    let file = export.open("f").unwrap();
    world.hold_reads(Duration::from_secs(20));
    let before = world.net().now();
    file.read_exact_at(&mut [0; 8], 0).unwrap();
    let took = millis(world.net().now() - before);
    assert!(took >= 20_000 && session.reconnects() == 0, "{took} ms");
    assert!(world.count(Opcode::Null) >= 20_000 / 750, "two in a term at least");
}

/// What a lost server did with a request.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Lost {
    /// It died before.
    Undone,
    /// It died behind it.
    Done,
}

/// What the next server says of it.
#[derive(Clone, Debug)]
enum Said {
    Nothing,
    /// The list does not have it.
    Unlisted,
    Unknown,
    Reply(Status, u64, Vec<u8>),
}

/// The server dies at the first request of an opcode; the next says this of it.
fn lose(world: &ScriptedWorld, opcode: Opcode, lost: Lost, said: &Said) {
    world.listen_at(&[2]);
    let request = Arc::new(Mutex::new(None::<Header>));
    let at = Arc::clone(&request);
    world.once(opcode, move |header| {
        at.lock().unwrap().get_or_insert(*header);
        if lost == Lost::Done { Action::CrashAfter } else { Action::CrashBefore }
    });
    let said = said.clone();
    world.greet(move |Greeting { welcome, .. }| {
        let listed = |reply| {
            let header = request.lock().unwrap().expect("the request");
            vec![
                // Of other slots and numbers.
                SlotOutcome { slot: header.slot.0, sequence: header.sequence + 1, reply: None },
                SlotOutcome { slot: header.slot.0, sequence: header.sequence, reply },
                SlotOutcome { slot: 4_000_000, sequence: header.sequence, reply: None },
            ]
        };
        let outcomes = match said.clone() {
            Said::Nothing => None,
            Said::Unlisted => Some(Vec::new()),
            Said::Unknown => Some(listed(None)),
            Said::Reply(status, offset, payload) => {
                Some(listed(Some(OutcomeReply { status: status.value(), offset, payload })))
            }
        };
        cluster(welcome, &["dafs+sim://1"], outcomes);
        Status::OK
    });
}

fn sent(world: &ScriptedWorld, wanted: Opcode) -> Vec<Flags> {
    world.log().into_iter().filter(|(opcode, _)| *opcode == wanted).map(|(_, flags)| flags).collect()
}

fn is_in_doubt<T>(outcome: &Result<T, Error>) -> bool {
    matches!(outcome, Err(Error::InDoubt { .. }))
}

/// Changes that are not repeated: what to do first, the change, and what tells that it was made.
type Change = (Opcode, fn(&Export), fn(&Export) -> Result<(), Error>, fn(&Export) -> bool);

fn exists(export: &Export, path: &str) -> bool {
    export.metadata(path).is_ok()
}

const CHANGES: [Change; 7] = [
    (Opcode::Mkdir, |_| {}, |export| export.create_dir("d", 0o755).map(drop), |export| exists(export, "d")),
    (
        Opcode::Symlink,
        |_| {},
        |export| export.symlink("t", "s").map(drop),
        |export| export.read_link("s").is_ok(),
    ),
    (
        Opcode::Link,
        |export| drop(export.create("f").unwrap()),
        |export| export.link("f", export, "l").map(drop),
        |export| exists(export, "l"),
    ),
    (
        Opcode::Remove,
        |export| drop(export.create("f").unwrap()),
        |export| export.remove_file("f"),
        |export| !exists(export, "f"),
    ),
    (
        Opcode::Rename,
        |export| drop(export.create("f").unwrap()),
        |export| export.rename("f", export, "m", false),
        |export| exists(export, "m") && !exists(export, "f"),
    ),
    (
        Opcode::XattrRemove,
        |export| {
            drop(export.create("f").unwrap());
            export.set_xattr("f", "user.x", b"v", XattrSetMode::Any).unwrap();
        },
        |export| export.remove_xattr("f", "user.x"),
        |export| export.xattr("f", "user.x").is_err(),
    ),
    (
        Opcode::XattrWrite,
        |export| drop(export.create("f").unwrap()),
        |export| export.set_xattr("f", "user.x", b"v", XattrSetMode::Any),
        |export| export.xattr("f", "user.x").is_ok_and(|value| value == b"v"),
    ),
];

/// The payload of a reply with attributes.
fn attributes(world: &ScriptedWorld) -> Vec<u8> {
    let session = world.connect_to(&[1], &ScriptedWorld::config()).unwrap();
    let attributes = session.mount("data").unwrap().metadata("").unwrap();
    session.close();
    encode_message_pack(&attributes)
}

// [CLI-211] [SESS-150]
#[test]
fn change_that_was_carried_out_ends_with_its_reply() {
    for (opcode, prepare, change, is_made) in CHANGES {
        let world = world(&[1]);
        let payload = attributes(&world);
        let (_session, export) = begun(&world);
        prepare(&export);
        lose(&world, opcode, Lost::Done, &Said::Reply(Status::OK, 0, payload));
        change(&export).unwrap_or_else(|error| panic!("{opcode:?}: {error}"));
        assert!(is_made(&export), "{opcode:?}");
        assert_eq!(sent(&world, opcode), [Flags::empty()], "{opcode:?}");
    }
}

// [CLI-219]
#[test]
fn files_that_an_unanswered_rename_has_moved_are_opened_again() {
    type Renames = fn(&Export) -> Result<(), Error>;
    let renames: [Renames; 2] = [
        |export| export.rename("d", export, "moved", false),
        |export| export.exchange("d/f", export, "other"),
    ];
    for (renames, lost) in renames.iter().flat_map(|renames| [(renames, Lost::Done), (renames, Lost::Undone)])
    {
        let world = world(&[1]);
        let (_session, export) = begun(&world);
        export.create_dir("d", 0o755).unwrap();
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true);
        let file = export.open_with("d/f", &options).unwrap();
        let other = export.open_with("other", &options).unwrap();
        file.write_all_at(b"file", 0).unwrap();
        other.write_all_at(b"other", 0).unwrap();
        [&file, &other].iter().for_each(|file| file.commit().unwrap());
        let said = match lost {
            Lost::Done => Said::Reply(Status::OK, 0, Vec::new()),
            Lost::Undone => Said::Unlisted,
        };
        lose(&world, Opcode::Rename, lost, &said);
        renames(&export).unwrap();
        // Once more, by the names that they have now.
        world.restart();
        for (file, content) in [(&file, &b"file"[..]), (&other, b"other")] {
            let mut found = vec![0; content.len()];
            assert_eq!(file.read_at(&mut found, 0).unwrap(), content.len(), "{lost:?}");
            assert_eq!(found, content, "{lost:?}");
        }
    }
}

// [CLI-211]
#[test]
fn change_that_was_refused_ends_with_its_status() {
    for (opcode, prepare, change, _) in CHANGES {
        let world = world(&[1]);
        let (_session, export) = begun(&world);
        prepare(&export);
        lose(&world, opcode, Lost::Undone, &Said::Reply(Status::NO_SPACE, 0, Vec::new()));
        assert_eq!(change(&export).unwrap_err().status(), Some(Status::NO_SPACE), "{opcode:?}");
        assert_eq!(sent(&world, opcode).len(), 1, "{opcode:?}");
    }
}

// [CLI-212]
#[test]
fn change_of_which_a_server_is_not_sure_is_in_doubt() {
    for (opcode, prepare, change, _) in CHANGES {
        for said in [Said::Unknown, Said::Nothing] {
            let world = world(&[1]);
            let (_session, export) = begun(&world);
            prepare(&export);
            lose(&world, opcode, Lost::Done, &said);
            let outcome = change(&export);
            assert!(is_in_doubt(&outcome), "{opcode:?}, {said:?}: {outcome:?}");
            assert_eq!(sent(&world, opcode).len(), 1, "{opcode:?}");
        }
    }
}

// [CLI-213] [SESS-151]
#[test]
fn change_that_was_not_carried_out_is_sent_again() {
    for (opcode, prepare, change, is_made) in CHANGES {
        let world = world(&[1]);
        let (_session, export) = begun(&world);
        prepare(&export);
        lose(&world, opcode, Lost::Undone, &Said::Unlisted);
        change(&export).unwrap_or_else(|error| panic!("{opcode:?}: {error}"));
        assert!(is_made(&export), "{opcode:?}");
        assert_eq!(sent(&world, opcode), [Flags::empty(); 2], "{opcode:?}");
    }
}

// [CLI-213] [SESS-56] A server that was there all the time has ended the session, and knows what it had done.
#[test]
fn write_of_an_ended_session_goes_again_where_outcomes_allow() {
    for said in [Some(Vec::new()), None] {
        let world = world(&[1]);
        let (mut epoch, is_told, outcomes) = (None, said.is_some(), said.clone());
        world.greet(move |Greeting { welcome, .. }| {
            welcome.server_epoch = *epoch.get_or_insert(welcome.server_epoch);
            cluster(welcome, &["dafs+sim://2"], outcomes.clone());
            Status::OK
        });
        let (_session, export) = begun(&world);
        let file = opened(&export, OpenOptions::new().write(true));
        world.once(Opcode::Write, |_| Action::CrashBefore);
        let written = file.write_all_at(b"abc", 0);
        match is_told {
            true => assert!(written.is_ok() && world.content("f") == b"abc", "{written:?}"),
            false => assert!(is_in_doubt(&written), "{written:?}"),
        }
    }
}

/// A file whose handle was opened at the first server.
fn opened(export: &Export, options: &mut OpenOptions) -> File {
    export.open_with("f", options.create(true)).unwrap()
}

// [CLI-211] [CLI-215]
#[test]
fn append_that_was_carried_out_ends_with_where_it_went() {
    for (stability, offset) in [(Stability::FileSync, 100), (Stability::Unstable, 7)] {
        let world = world(&[1]);
        let (_session, export) = begun(&world);
        let file = opened(&export, OpenOptions::new().append(true).stability(stability));
        lose(&world, Opcode::Append, Lost::Done, &Said::Reply(Status::OK, offset, Vec::new()));
        assert_eq!(file.append(b"once").unwrap(), offset);
        assert_eq!(sent(&world, Opcode::Append).len(), 1);
        // It was not lost with its server.
        file.commit().unwrap();
    }
}

// [CLI-218]
#[test]
fn change_of_size_is_lost_where_nobody_has_taken_over() {
    for (outcomes, is_lost) in [(Some(Vec::new()), false), (None, true)] {
        let world = world(&[1]);
        let (_session, export) = begun(&world);
        let file = opened(&export, OpenOptions::new().write(true));
        file.truncate(5).unwrap();
        let is_told = outcomes.clone();
        world.greet(move |Greeting { welcome, .. }| {
            cluster(welcome, &["dafs+sim://1"], is_told.clone());
            Status::OK
        });
        world.listen_at(&[2]);
        world.restart();
        let committed = file.commit();
        match is_lost {
            true => {
                assert!(matches!(committed, Err(Error::WritesLost { attributes: true, .. })), "{committed:?}")
            }
            false => committed.unwrap(),
        }
        // Over another connection of the same session, and behind another change.
        file.truncate(7).unwrap();
        world.once(Opcode::Commit, |_| Action::CutBefore);
        file.commit().unwrap();
    }
}

// [CLI-211] [SESS-150]
#[test]
fn file_that_a_lost_open_made_is_opened_without_making_it() {
    for lost in [Lost::Done, Lost::Undone] {
        let world = world(&[1]);
        let (_session, export) = begun(&world);
        let said = match lost {
            Lost::Done => Said::Reply(Status::OK, 0, Vec::new()),
            Lost::Undone => Said::Unlisted,
        };
        lose(&world, Opcode::Open, lost, &said);
        let file = export.open_with("n", OpenOptions::new().write(true).create_new(true)).unwrap();
        file.write_all_at(b"new", 0).unwrap();
        assert_eq!(sent(&world, Opcode::Open).len(), 2, "{lost:?}");
        assert_eq!(world.content("n"), b"new");
    }
    // One that was refused stays so; of one that nobody is sure of, the program is told.
    for said in [Said::Reply(Status::EXISTS, 0, Vec::new()), Said::Unknown] {
        let world = world(&[1]);
        let (_session, export) = begun(&world);
        lose(&world, Opcode::Open, Lost::Undone, &said);
        let outcome = export.open_with("n", OpenOptions::new().write(true).create_new(true));
        let error = outcome.map(drop).unwrap_err();
        match said {
            Said::Unknown => assert!(matches!(error, Error::InDoubt { .. }), "{error}"),
            _ => assert!(error.already_exists(), "{error}"),
        }
    }
}

#[test]
fn file_that_nobody_awaits_is_not_opened_again() {
    let world = world(&[1]);
    let (session, export) = begun(&world);
    lose(&world, Opcode::Open, Lost::Done, &Said::Reply(Status::OK, 0, Vec::new()));
    drop(export.submit_open_with("n", OpenOptions::new().write(true).create_new(true)));
    session.ping().unwrap();
    assert_eq!((session.reconnects(), sent(&world, Opcode::Open).len()), (1, 1));
}

// [CLI-216]
#[test]
fn chain_of_which_nothing_was_carried_out_begins_anew() {
    for (said, begins) in [
        (Said::Unlisted, true),
        (Said::Nothing, false),
        (Said::Unknown, false),
        (Said::Reply(Status::OK, 0, Vec::new()), false),
    ] {
        let world = world(&[1]);
        let (_session, export) = begun(&world);
        lose(&world, Opcode::Open, Lost::Undone, &said);
        let chain = export.chain().open("n", OpenOptions::new().write(true).create_new(true));
        let outcome = chain.write_at(b"new", 0).close().run();
        match begins {
            true => assert!(outcome.is_ok() && world.content("n") == b"new", "{outcome:?}"),
            false => assert!(is_in_doubt(&outcome), "{said:?}: {outcome:?}"),
        }
    }
}

// [CLI-216] What was answered counts, although no list has it any more.
#[test]
fn chain_of_which_an_answered_link_made_something_is_in_doubt() {
    let world = world(&[1]);
    let (_session, export) = begun(&world);
    // The write does not arrive, and the server dies at the next message.
    lose(&world, Opcode::Null, Lost::Undone, &Said::Unlisted);
    world.hook(|header| match header.opcode {
        Opcode::Write => Action::Ignore,
        Opcode::Null => Action::CrashBefore,
        _ => Action::Serve,
    });
    let chain = export.chain().open("n", OpenOptions::new().write(true).create_new(true));
    let outcome = chain.write_at(b"new", 0).close().run();
    assert!(is_in_doubt(&outcome), "{outcome:?}");
}

// [CLI-217] [SESS-149]
#[test]
fn outcomes_are_kept_where_the_connection_breaks_while_files_are_reopened() {
    for cut in [Opcode::Mount, Opcode::Open] {
        for loses_both in [false, true] {
            let world = world(&[1]);
            let payload = attributes(&world);
            let (session, export) = begun(&world);
            let file = opened(&export, OpenOptions::new().read(true).write(true));
            let lost = session.agreed().session;
            world.listen_at(&[2]);
            let (request, mut is_cut) = (Arc::new(Mutex::new(None::<Header>)), false);
            let at = Arc::clone(&request);
            world.hook(move |header| {
                let is_lost = at.lock().unwrap().is_some();
                match header.opcode {
                    Opcode::Mkdir if !is_lost => {
                        *at.lock().unwrap() = Some(*header);
                        Action::CrashAfter
                    }
                    opcode if is_lost && !is_cut && opcode == cut => {
                        is_cut = true;
                        if loses_both { Action::CrashBefore } else { Action::CutAfter }
                    }
                    _ => Action::Serve,
                }
            });
            let mut is_told = false;
            world.greet(move |Greeting { welcome, resume, .. }| {
                let header = request.lock().unwrap().expect("the request");
                let (slot, sequence) = (header.slot.0, header.sequence);
                let names_lost = resume.expect("a session").session == lost;
                let reply = OutcomeReply { status: 0, offset: 0, payload: payload.clone() };
                let outcomes = match (names_lost, is_told) {
                    (true, false) => vec![SlotOutcome { slot, sequence, reply: Some(reply) }],
                    // Later words are of nothing that is awaited: these would be wrong.
                    _ => vec![SlotOutcome { slot, sequence, reply: None }],
                };
                is_told |= names_lost;
                cluster(welcome, &["dafs+sim://1"], Some(outcomes));
                Status::OK
            });
            let made = export.create_dir("d", 0o755);
            assert!(made.is_ok(), "{cut:?}, {loses_both}: {made:?}");
            assert_eq!(sent(&world, Opcode::Mkdir), [Flags::empty()], "{cut:?}, {loses_both}");
            file.write_all_at(b"goes on", 0).unwrap();
        }
    }
}

// [CLI-208] [CLI-213]
#[test]
fn list_of_ten_thousand_outcomes_and_absurd_servers_does_no_harm() {
    let world = world(&[1]);
    let (session, export) = begun(&world);
    let file = opened(&export, OpenOptions::new().read(true).write(true));
    world.listen_at(&[2]);
    world.once(Opcode::Write, |_| Action::CrashBefore);
    world.greet(|Greeting { welcome, .. }| {
        let outcome = |number: u32| SlotOutcome { slot: number % 700 + 100, sequence: number, reply: None };
        let absurd =
            ["dafs+shm:///run/x", "dafs://h", "dafs+tcp://127.0.0.1:1", "", "dafs+sim://2", "dafs+sim://2"];
        // What a message has room for.
        cluster(welcome, &absurd, Some((0..1500).map(outcome).collect()));
        Status::OK
    });
    file.write_all_at(b"12345678", 0).unwrap();
    assert_eq!(world.content("f"), b"12345678");
    assert_eq!(session.agreed().servers, ["dafs+sim://2"; 2]);
    // It names itself, and is lost: it is asked for once in a round.
    let asked = Arc::new(Mutex::new(0));
    let told = Arc::clone(&asked);
    world.greet(move |_| {
        *told.lock().unwrap() += 1;
        if *told.lock().unwrap() < 3 { Status::AGAIN } else { Status::OK }
    });
    world.restart();
    let before = world.net().now();
    session.ping().unwrap();
    assert_eq!(*asked.lock().unwrap(), 3);
    assert!(millis(world.net().now() - before) >= 10 + 20, "a pause behind each");
}
