//! `dafs fence`, and the file in which a server keeps its fences.

use std::process::{Command, Stdio};

use dafs_tests::harness::On;
use dafs_tests::on_each_provider;

use crate::programs::{World, dafs};

on_each_provider! {
    entries_that_are_added_at_once_are_all_there,
    fence_is_shown_and_changed_and_keeps_out_whom_it_names,
    fence_outlives_a_server_that_is_killed,
}

// [CMD-61] [CMD-62] [CMD-63] [ACC-107] [ACC-132] [ACC-141]
fn fence_is_shown_and_changed_and_keeps_out_whom_it_names(on: On) {
    let world = World::start(on);
    let url = world.url("data");
    let fence = |words: &[&str]| {
        let words: Vec<&str> = ["fence"].iter().chain(words).copied().collect();
        dafs(words.iter().copied().chain([url.as_str()]))
    };
    assert_eq!(fence(&["list"]).succeeded().text(), "nobody is fenced off\n");
    let id = "0a".repeat(16);
    let ls = || dafs(["--client-id", &id, "ls", &url]);
    let info = dafs(["--client-id", &id, "info", world.server()]).succeeded().text();
    assert!(info.contains(&format!("client id: {id}")), "{info}");
    let json = dafs(["--client-id", &id, "info", "--json", world.server()]).succeeded().text();
    assert!(json.contains(&format!("\"client_id\":\"{id}\"")), "{json}");
    let stats = dafs(["--client-id", &id, "stats", world.server()]).succeeded().text();
    assert!(stats.contains(&format!("client: {id} ")) && stats.contains("1 session"), "{stats}");
    fence(&["add", "--client", &id]).succeeded();
    ls().failed(1, &["fenced off"]);
    // Another client of the host, by another id.
    dafs(["--client-id", &"07".repeat(16), "ls", &url]).succeeded();
    fence(&["add", "--key", "alpha", "--address", "192.0.2.0/24", "--client", &id]).succeeded();
    let shown = fence(&["list"]).succeeded().text();
    assert_eq!(shown, format!("fenced off:\n  client {id}\n  key alpha\n  address 192.0.2.0/24\n"));
    assert!(fence(&["list", "--json"]).succeeded().text().contains("\"mode\":\"deny\""));
    fence(&["remove", "--key", "beta"]).failed(1, &["key beta is not in its list"]);
    fence(&["add", "--allow", "--key", "beta"]).failed(1, &["leave --allow out"]);
    fence(&["add", "--address", "10.0.0.1/8"]).failed(1, &["invalid argument"]);
    fence(&["add"]).failed(2, &["--client, --key or --address"]);
    fence(&["add", "--client", "07"]).failed(2, &["32 hexadecimal digits"]);
    fence(&["remove", "--client", &id]).succeeded();
    ls().succeeded();
    fence(&["clear"]).succeeded();
    fence(&["add", "--allow", "--key", "nobody"]).succeeded();
    ls().failed(1, &["fenced off"]);
    // Who may change the list is not shut out from that.
    assert_eq!(fence(&["list"]).succeeded().text(), "everybody is fenced off but:\n  key nobody\n");
    fence(&["remove", "--key", "nobody"]).succeeded();
    assert_eq!(fence(&["list"]).succeeded().text(), "everybody is fenced off\n");
    fence(&["clear"]).succeeded();
    ls().succeeded();
}

// [CMD-61] [ACC-153]
fn entries_that_are_added_at_once_are_all_there(on: On) {
    let world = World::start(on);
    let url = world.url("data");
    let ids: Vec<String> = (10..26).map(|number| number.to_string().repeat(16)).collect();
    std::thread::scope(|scope| {
        for id in &ids {
            scope.spawn(|| dafs(["fence", "add", "--client", id, &url]).succeeded());
        }
    });
    let shown = dafs(["fence", "list", &url]).succeeded().text();
    let missing: Vec<_> = ids.iter().filter(|id| !shown.contains(*id)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

// [ACC-136]
fn fence_outlives_a_server_that_is_killed(on: On) {
    let with_file = |server: &mut Command, directory: &std::path::Path| {
        server.arg("--fence-file").arg(directory.join("fences"));
    };
    let mut world = World::start_with(on, with_file);
    dafs(["fence", "add", "--client", &"07".repeat(16), &world.url("data")]).succeeded();
    world.kill();
    world.restart_with(with_file);
    dafs(["--client-id", &"07".repeat(16), "ls", &world.url("data")]).failed(1, &["fenced off"]);
    dafs(["ls", &world.url("data")]).succeeded();
}

// [ACC-137]
#[test]
fn server_with_a_damaged_fence_file_does_not_start_and_says_why() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("fences");
    std::fs::write(&path, "dafs-fences 1\nexport deny mem\n").unwrap();
    let server = dafs_tests::program::program();
    let started = Command::new(server)
        .args(["--export", "mem=mem:1M", "--listen", "tcp://127.0.0.1:0", "--no-calibrate", "--fence-file"])
        .arg(&path)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&started.stderr);
    assert!(!started.status.success(), "{said}");
    for word in ["cannot read the fence file", "its end is missing", "remove it to lift all fences"] {
        assert!(said.contains(word), "{word}: {said}");
    }
}
