//! `dafs fence`, and the file in which a server keeps fences.

use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use dafs_client::Status;
use dafs_proto::wire::FenceList;
use dafs_tests::harness::On;
use dafs_tests::on_sockets;
use dafs_tests::suite::assert_status;

use crate::locks::limit_file_size;
use crate::programs::{World, dafs};

on_sockets! {
    entries_that_are_added_at_once_are_all_there,
    fence_is_shown_and_changed_and_keeps_out_whom_it_names,
    fence_outlives_a_server_that_is_killed,
    unwritten_fence_holds_and_is_written_later,
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
    // What is refused is refused in words, and what is there can be read.
    let ids: Vec<String> = (0..600).map(|number| format!("{number:032x}")).collect();
    let many = |ids: &[String]| {
        let words: Vec<&str> = ids.iter().flat_map(|id| ["--client", id]).collect();
        fence(&[&["add"], &*words].concat())
    };
    many(&ids).failed(1, &["more than 1,024 entries or 8,000 bytes", "--address"]);
    many(&ids[..400]).succeeded();
    assert_eq!(fence(&["list"]).succeeded().text().lines().count(), 401);
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
        server.arg("--state-file").arg(directory.join("fences"));
    };
    let mut world = World::start_with(on, with_file);
    dafs(["fence", "add", "--client", &"07".repeat(16), &world.url("data")]).succeeded();
    world.kill();
    world.restart_with(with_file);
    dafs(["--client-id", &"07".repeat(16), "ls", &world.url("data")]).failed(1, &["fenced off"]);
    dafs(["ls", &world.url("data")]).succeeded();
}

// [ACC-157]
fn unwritten_fence_holds_and_is_written_later(on: On) {
    let with_file = |server: &mut Command, directory: &std::path::Path| {
        server.arg("--export").arg("other=mem:1M").arg("--state-file").arg(directory.join("state"));
    };
    let mut world = World::start_with(on, with_file);
    let (id, url) = ("07".repeat(16), world.url("data"));
    let session = world.session().unwrap();
    let root = session.mount("data").unwrap();
    limit_file_size(&world, Some(0));
    let set = root.set_fence_list(&FenceList::of_clients(&[[7; 16]]));
    assert_status(set, Status::TOO_LARGE, "it is not written");
    limit_file_size(&world, None);
    dafs(["--client-id", &id, "ls", &url]).failed(1, &["fenced off"]);
    dafs(["fence", "add", "--client", &"08".repeat(16), &world.url("other")]).succeeded();
    world.kill();
    world.restart_with(with_file);
    dafs(["--client-id", &id, "ls", &world.url("data")]).failed(1, &["fenced off"]);
}

// [STATE-7]
#[test]
fn server_given_a_fence_file_says_what_to_do() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("fences");
    std::fs::write(&path, "dafs-fences 1\nexport deny mem\nclient 07\nend 0\n").unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    for (flag, words) in [
        ("--state-file", ["is a fence file of an earlier version", "`dafs fence add`"]),
        ("--fence-file", ["--state-file with a new file", "`dafs fence add`"]),
        ("--lock-file", ["one file keeps fences and locks now", "it keeps the locks"]),
    ] {
        let server = dafs_tests::program::program();
        let started = Command::new(server)
            .args(["--export", "mem=mem:1M", "--listen", "tcp://127.0.0.1:0", "--no-calibrate", flag])
            .arg(&path)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&started.stderr);
        assert!(!started.status.success(), "{flag}: {said}");
        for word in words {
            assert!(said.contains(word), "{flag}: {word}: {said}");
        }
    }
}
