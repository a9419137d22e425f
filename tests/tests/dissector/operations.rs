//! Every operation of the client, once at least, against a real server.

use std::io::{IoSlice, IoSliceMut};
use std::time::Duration;

use dafs_client::{
    AccessMode, AccessPattern, BatchHints, Config, Datatype, Expected, Export, Extent, FenceList, File,
    LockKind, LockOptions, MethodOverride, Noncontiguous, OpenOptions, Session, SetAttributes, SetTime,
    Stability, XattrSetMode,
};
use dafs_tests::suite::bytes;

use crate::recorder::Recorder;

const SMALL: usize = 3000;
const LARGE: usize = 40_000;

/// What a session is opened with.
pub(crate) fn config(method: MethodOverride) -> Config {
    Config { method, eager_buffer_count: 2, eager_buffer_size: 20_000, ..Config::default() }
}

/// A session through the recorder.
pub(crate) fn connect(recorder: &Recorder, config: &Config) -> Session {
    Session::connect(recorder.url(), config).expect("the session opens")
}

fn all() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true);
    options
}

/// What a session says of itself and the server.
pub(crate) fn ask(session: &Session) {
    session.ping().unwrap();
    session.limits().unwrap();
    session.publish(session.agreed().thresholds.crossovers).unwrap();
    session.statistics().unwrap();
    assert_eq!(session.exports().unwrap(), ["data", "mem"]);
}

/// Names, attributes, links and directories.
pub(crate) fn change_names(export: &Export) {
    export.create_dir("d", 0o755).unwrap();
    // An export in memory refuses it, which is an answer too.
    if export.make_node("p", dafs_client::NodeKind::Fifo, 0o600, 0).is_ok() {
        export.remove_file("p").unwrap();
    }
    export.create("d/f").unwrap().write_all_at(b"content", 0).unwrap();
    export.symlink("f", "d/s").unwrap();
    assert_eq!(export.read_link("d/s").unwrap(), b"f");
    export.link("d/f", export.root(), "d/second").unwrap();
    export.rename("d/second", export.root(), "d/\u{e9}", true).unwrap();
    export.lookup("d/s", true).unwrap();
    export.metadata("d/f").unwrap();
    export.symlink_metadata("d/s").unwrap();
    assert!(export.metadata("d/none").is_err());
    let set = SetAttributes {
        mode: Some(0o600),
        atime: Some(SetTime::Now),
        mtime: Some(SetTime::At(export.metadata("d/f").unwrap().ctime)),
        ..SetAttributes::default()
    };
    export.set_attributes("d/f", true, &set).unwrap();
    export.access("d/f", AccessMode::READ | AccessMode::WRITE).unwrap();
    export.statfs("").unwrap();
    for attributes in [false, true] {
        let entries = export.read_dir("d", attributes).unwrap();
        assert_eq!(entries.map(Result::unwrap).count(), 3);
    }
    export.remove_file("d/s").unwrap();
}

/// Extended attributes, of an export that has them.
pub(crate) fn change_attributes(export: &Export) {
    drop(export.create("x").unwrap());
    export.set_xattr("x", "user.a", b"v", XattrSetMode::Create).unwrap();
    assert_eq!(export.xattr("x", "user.a").unwrap(), b"v");
    assert_eq!(export.xattrs("x").unwrap(), [b"user.a"]);
    export.remove_xattr("x", "user.a").unwrap();
}

/// Data of one file, by the session's method.
pub(crate) fn move_data(session: &Session, file: &File) {
    for size in [1, SMALL, LARGE] {
        let data = bytes(size as u64, size);
        file.write_all_at(&data, 5).unwrap();
        let mut found = vec![0; size];
        file.read_exact_at(&mut found, 5).unwrap();
        assert!(found == data, "{size} bytes");
        let mut registered = session.buffer(size).unwrap();
        registered.copy_from_slice(&data);
        assert_eq!(file.write_buf_at(&registered, 5).unwrap(), size);
        assert_eq!(file.read_buf_at(&mut registered, 5).unwrap(), size);
    }
    file.append(b"behind").unwrap();
    file.write_at_with(b"durable", 0, Stability::FileSync).unwrap();
    file.commit().unwrap();
    file.truncate(LARGE as u64).unwrap();
}

/// What a file says of its space.
pub(crate) fn change_space(file: &File) {
    file.allocate(0, 64 << 10).unwrap();
    file.punch_hole(8192, 8192).unwrap();
    file.seek_data(0).unwrap();
    file.seek_hole(0).unwrap();
    file.hint(0, 0, AccessPattern::Sequential).unwrap();
    // Over TCP nothing is handed over.
    file.hand_over().unwrap_err();
    let end = file.metadata().unwrap().size;
    file.lock(5..10, LockKind::Exclusive).unwrap();
    assert_eq!(file.test_lock(0..u64::MAX, LockKind::Shared).unwrap(), None);
    // Another waits for it, and is told.
    let other = LockOptions { owner: Some(7), ..LockOptions::default() };
    let waits = file.submit_lock_with(0..u64::MAX, LockKind::Shared, other);
    file.unlock(0..u64::MAX).unwrap();
    waits.wait().unwrap();
    file.unlock_with(0..u64::MAX, 7).unwrap();
    file.copy_range(0, 10, file, end).unwrap();
    file.truncate(end).unwrap();
    file.verify(&Expected::new().size(file.metadata().unwrap().size)).unwrap();
    file.commit_range(0, 10, Stability::DataSync).unwrap();
    file.metadata().unwrap();
    file.set_attributes(&SetAttributes { mode: Some(0o640), ..SetAttributes::default() }).unwrap();
}

/// A view: described, used and given back.
pub(crate) fn move_views(session: &Session, file: &File) {
    let view = session.view(&Datatype::bytes(3).resized(0, 10)).unwrap();
    for len in [30, 20_000] {
        let data = bytes(8, len);
        assert_eq!(file.write_view(&view.at(5, 0), &data).unwrap(), len);
        let mut found = vec![0; len];
        assert_eq!(file.read_view(&view.at(5, 0), &mut found).unwrap().count, len);
        assert!(found == data, "{len} bytes");
    }
    drop(view);
    session.ping().unwrap();
}

/// Lists: many extents, and memory in pieces.
pub(crate) fn move_lists(file: &File) {
    for len in [10, 2000] {
        let extents: Vec<Extent> = (0..8).map(|n| Extent { offset: n * 5000, len }).collect();
        let data = bytes(7, 8 * len as usize);
        let (first, second) = data.split_at(3 * len as usize + 1);
        file.write_list(&extents, &[IoSlice::new(first), IoSlice::new(second)]).unwrap();
        let mut found = vec![0; data.len()];
        let (first, second) = found.split_at_mut(len as usize);
        let mut pieces = [IoSliceMut::new(first), IoSliceMut::new(second)];
        file.read_list(&extents, &mut pieces).unwrap();
        assert!(found == data, "extents of {len} bytes");
    }
}

/// Batches of both directions on two files.
pub(crate) fn move_batches(session: &Session, files: [&File; 2], size: usize) {
    let data = bytes(3, size);
    let mut found = vec![0; size];
    let mut batch = session.batch_io();
    batch.write_at(files[0], &data, 0).read_at(files[1], &mut found, 0).write_at(
        files[1],
        &data,
        size as u64,
    );
    assert!(batch.run().unwrap().iter().all(Result::is_ok));
    let mut batch = session.owned_batch();
    (0..6).for_each(|n| {
        batch.write_at(files[0], vec![1; 100], n * 200);
    });
    let mut pending = batch.submit(Some(BatchHints { completions: 2, window: Duration::ZERO }));
    while !pending.wait_some().is_empty() {}
    assert!(pending.wait().results.unwrap().iter().all(Result::is_ok));
}

/// A chain from a path to a closed file, and one that fails.
pub(crate) fn run_chains(export: &Export) {
    let mut head = [0; 7];
    let chain = export.chain().lookup("d").open("f", &all()).write_at(b"chained", 0);
    chain.read_at(&mut head, 0).commit().close().run().unwrap();
    assert_eq!(&head, b"chained");
    assert!(export.chain().open("none", OpenOptions::new().read(true)).close().run().is_err());
}

/// A token, made by one session and used by another.
pub(crate) fn share(recorder: &Recorder, file: &File) {
    let token = file.share(true, true, Duration::from_secs(5)).unwrap();
    let other = connect(recorder, &Config::default());
    let export = other.mount("data").unwrap();
    let opened = export.open_token(&token, "f", &all()).unwrap();
    opened.write_at(b"other", 0).unwrap();
    drop(opened);
    other.close();
}

/// The list of clients that are fenced off.
pub(crate) fn fence(export: &Export) {
    export.set_fence_list(&FenceList::of_clients(&[[0xf0; 16], [7; 16]])).unwrap();
    assert_eq!(export.fence_list().unwrap().len(), 2);
    export.set_fence_list(&FenceList::of_clients(&[])).unwrap();
}

/// Sessions of every method: names once, data by each.
pub(crate) fn run_all(recorder: &Recorder) {
    let methods = [
        MethodOverride::Inline,
        MethodOverride::Direct,
        MethodOverride::Bounced,
        MethodOverride::Eager,
        MethodOverride::ClientInitiated,
        MethodOverride::Auto,
    ];
    for (number, method) in methods.into_iter().enumerate() {
        let ways = [Noncontiguous::Gather, Noncontiguous::Pack, Noncontiguous::Multiple];
        let config = Config { noncontiguous: ways[number % ways.len()], ..config(method) };
        let session = connect(recorder, &config);
        let export = session.mount("data").unwrap();
        if number == 0 {
            ask(&session);
            change_names(&export);
            change_attributes(&export);
            fence(&export);
        }
        let file = export.open_with(format!("f{number}"), &all()).unwrap();
        move_data(&session, &file);
        change_space(&file);
        for file in [&file, &file.with_explanation()] {
            move_lists(file);
            move_views(&session, file);
        }
        let other = export.open_with("other", &all()).unwrap();
        move_batches(&session, [&file, &other], SMALL);
        move_batches(&session, [&file, &other], LARGE / 2);
        run_chains(&export);
        share(recorder, &file);
        drop((file, other));
        session.close();
    }
}
