//! Deny modes: at every server, and while servers are lost.

use dafs_client::{Config, Export, File, OpenOptions, ReconnectPolicy, Session};
use dafs_proto::wire::Status;
use dafs_tests::cluster::{Cluster, FENCE_COMMAND, config};

fn options(access: &str, deny: &str) -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(access.contains('r')).write(access.contains('w'));
    options.deny_read(deny.contains('r')).deny_write(deny.contains('w'));
    options
}

fn open(export: &Export, name: &str, access: &str, deny: &str) -> dafs_client::Result<File> {
    export.open_with(name, &options(access, deny))
}

fn is_denied(opened: &dafs_client::Result<File>) -> bool {
    match opened {
        Ok(_) => false,
        Err(error) if error.status() == Some(Status::SHARE_DENIED) => true,
        Err(error) => panic!("{error:?}"),
    }
}

/// Closing is not waited for.
fn await_open(export: &Export, name: &str, access: &str, deny: &str) -> File {
    loop {
        let opened = open(export, name, access, deny);
        if !is_denied(&opened) {
            return opened.unwrap();
        }
    }
}

// [CLUS-35] [STOR-151] [STOR-152] [STOR-153]
#[test]
#[ignore = "needs etcd"]
fn deny_mode_holds_at_every_server() {
    let cluster = Cluster::start(3, &[]);
    let sessions = [0, 1, 2].map(|server| cluster.session(server));
    let exports = sessions.each_ref().map(|session| session.mount("data").unwrap());
    exports[0].create("file").unwrap().write_all_at(b"data", 0).unwrap();
    exports[0].link("file", exports[0].root(), "other").unwrap();
    // What is open already, of which no server had told.
    let writes = open(&exports[2], "file", "w", "").unwrap();
    assert!(is_denied(&open(&exports[0], "file", "r", "w")));
    drop(writes);
    let held = await_open(&exports[0], "file", "r", "w");
    for export in &exports {
        assert!(is_denied(&open(export, "other", "w", "")));
        assert!(is_denied(&export.open_with("file", options("w", "").truncate(true).create(true))));
        assert!(is_denied(&open(export, "file", "r", "r")));
        drop(open(export, "file", "r", "w").unwrap());
    }
    assert_eq!(std::fs::read(cluster.data().join("file")).unwrap(), b"data");
    // Handles of a token are one open.
    let token = held.share(true, false, std::time::Duration::ZERO).unwrap();
    let more = cluster.session(0);
    let part = more.mount("data").unwrap().open_token(&token, "file", &options("r", "w")).unwrap();
    drop(held);
    sessions[0].probe().unwrap();
    assert!(is_denied(&open(&exports[1], "file", "w", "")));
    drop((part, more));
    let [own, ..] = sessions;
    // The token ends with the session that made it.
    own.close();
    let alone = await_open(&exports[1], "file", "rw", "rw");
    assert!(is_denied(&open(&exports[2], "file", "r", "")));
    drop(alone);
    await_open(&exports[2], "file", "rw", "");
}

// [CLUS-36] [CLUS-39]
#[test]
#[ignore = "needs etcd"]
fn deny_mode_outlives_its_server_until_its_clients_lease_is_over() {
    let more = ["--fence-command", FENCE_COMMAND, "--lease-ms", "3000", "--keep-alive-ms", "500"];
    let mut cluster = Cluster::start(2, &more);
    let (stays, other) = (cluster.session(0), cluster.session(1));
    let lost = {
        let reconnect = ReconnectPolicy { attempts_max: 0, ..ReconnectPolicy::default() };
        Session::connect(cluster.url(0), &Config { reconnect, ..config() }).unwrap()
    };
    let [here, gone, there] = [&stays, &lost, &other].map(|session| session.mount("data").unwrap());
    for name in ["kept", "lost"] {
        here.create(name).unwrap();
    }
    stays.probe().unwrap();
    let kept = open(&here, "kept", "rw", "rw").unwrap();
    let left = open(&gone, "lost", "w", "rw").unwrap();
    cluster.servers[0].kill();
    // Before anybody notices, while its place is taken, and as long as its clients may come back.
    while !cluster.said().contains("took over server=") {
        assert!(is_denied(&open(&there, "kept", "r", "")));
        assert!(is_denied(&open(&there, "lost", "w", "")));
    }
    assert!(is_denied(&open(&there, "lost", "w", "")));
    kept.write_all_at(b"mine", 0).unwrap();
    assert!(is_denied(&open(&there, "kept", "r", "")));
    // Who does not come back has it until its lease is over; who came keeps it.
    await_open(&there, "lost", "w", "");
    assert!(left.write_all_at(b"not any more", 0).is_err());
    assert!(is_denied(&open(&there, "kept", "r", "")));
    drop(kept);
    await_open(&there, "kept", "r", "");
}
