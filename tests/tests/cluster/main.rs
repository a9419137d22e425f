//! Several servers of one directory, with etcd: clients go on at another server when theirs is killed, stopped or ended, and nothing is
//! lost or done twice.

#![allow(clippy::unwrap_used, reason = "tests")]

mod deny;
mod store;
mod work;

use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use dafs_client::{Extent, LockKind, LockOptions, OpenOptions};
use dafs_proto::wire::{FenceList, Status};
use dafs_tests::cluster::losses::{Draws, Loss};
use dafs_tests::cluster::{Cluster, FENCE_COMMAND, Place, Server, config};
use dafs_tests::port::Port;

/// Clients work while something happens to the servers. Returns what they have done.
fn while_working(
    cluster: &mut Cluster,
    clients: usize,
    happens: impl FnOnce(&mut Cluster),
) -> Vec<work::Done> {
    let is_over = Arc::new(AtomicBool::new(false));
    let workers: Vec<_> = (0..clients)
        .map(|client| {
            let (session, is_over) = (cluster.session(client), Arc::clone(&is_over));
            std::thread::spawn(move || work::work(&session, client, &is_over))
        })
        .collect();
    happens(cluster);
    is_over.store(true, Ordering::Release);
    let done: Vec<work::Done> = workers.into_iter().map(|worker| worker.join().unwrap()).collect();
    work::check(&cluster.data(), &done);
    done
}

/// Waits until servers have said this so many times.
fn await_words(cluster: &Cluster, words: &str, times: usize) {
    while cluster.said().matches(words).count() < times {
        std::thread::yield_now();
    }
}

/// So many servers are lost, one after the other, as a seed says. More of them, and others, by hand.
fn losses(of: &[Loss], count: usize) -> Vec<(usize, Loss)> {
    let set = |name: &str| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    let count = set("DAFS_CLUSTER_LOSSES").map_or(count, |count| usize::try_from(count).unwrap());
    let seed = set("DAFS_CLUSTER_SEED").unwrap_or(3);
    println!("DAFS_CLUSTER_LOSSES={count} DAFS_CLUSTER_SEED={seed}");
    let mut draws = Draws(seed);
    // However few there are, each is among them.
    let random = std::iter::repeat_with(|| of[draws.below(of.len() as u64)]);
    let kinds: Vec<Loss> = of.iter().copied().chain(random).take(count).collect();
    kinds.into_iter().map(|kind| (draws.below(3), kind)).collect()
}

// [CLUS-1] [CLUS-2] [CLUS-3] [SESS-152]
#[test]
#[ignore = "needs etcd"]
fn lost_servers_lose_nothing_and_nothing_is_done_twice() {
    let mut cluster = Cluster::start(3, &["--fence-command", FENCE_COMMAND]);
    let done = while_working(&mut cluster, 4, |cluster| {
        losses(&Loss::ALL, 5).into_iter().for_each(|(number, loss)| loss.befall(cluster, number));
    });
    println!("{done:?}");
}

// [CLUS-2] [CLUS-4]
#[test]
#[ignore = "needs etcd"]
fn server_of_a_cluster_of_one_goes_on_where_it_was_killed() {
    let mut cluster = Cluster::start(1, &[]);
    while_working(&mut cluster, 3, |cluster| {
        for times in 1..=3 {
            cluster.servers[0].kill();
            cluster.servers[0].start_again();
            cluster.await_takeovers(times);
        }
    });
}

// [CLUS-4]
#[test]
#[ignore = "needs etcd"]
fn stopped_server_is_cut_off_and_writes_nothing_more() {
    let mut cluster = Cluster::start(3, &["--fence-command", FENCE_COMMAND]);
    while_working(&mut cluster, 3, |cluster| {
        for stop in 0..2 {
            cluster.servers[stop].stop();
            cluster.await_takeovers(stop + 1);
            // It was killed by the command.
            cluster.servers[stop].wait();
            cluster.servers[stop].start_again();
        }
    });
}

// [CLUS-4] [CLUS-7]
#[test]
#[ignore = "needs links"]
fn server_whose_link_is_cut_is_replaced() {
    let mut cluster = Cluster::start_behind_links(3, &["--fence-command", FENCE_COMMAND]);
    let done = while_working(&mut cluster, 4, |cluster| {
        losses(&[Loss::Cut], 2).into_iter().for_each(|(number, loss)| loss.befall(cluster, number));
    });
    println!("{done:?}");
}

// [CLUS-7]
#[test]
#[ignore = "needs links"]
fn servers_whose_links_are_cut_for_a_moment_go_on() {
    let mut cluster = Cluster::start_behind_links(2, &["--fence-command", FENCE_COMMAND]);
    while_working(&mut cluster, 3, |cluster| {
        cluster.hosts.iter().for_each(|host| host.set_link(false));
        await_words(cluster, "this server's term is over", 2);
        cluster.hosts.iter().for_each(|host| host.set_link(true));
        await_words(cluster, "a new term has begun", 2);
    });
    assert!(!cluster.said().contains("taking over"), "both were there");
}

// [CLUS-4] [CLUS-30] [CLUS-32]
#[test]
#[ignore = "needs ceph-links"]
fn lost_servers_on_ceph_are_evicted_and_lose_nothing() {
    let mut cluster = Cluster::start_on_ceph_behind_links(3, &[]);
    let done = while_working(&mut cluster, 4, |cluster| {
        losses(&Loss::BEHIND_LINKS, 4).into_iter().for_each(|(number, loss)| loss.befall(cluster, number));
    });
    println!("{done:?}");
}

// [CLUS-14] [CLUS-32] [STOR-198]
#[test]
#[ignore = "needs ceph"]
fn server_ends_whose_mount_has_gone_and_others_go_on() {
    let mut cluster = Cluster::start_on_ceph(2, &[]);
    let export = cluster.session(0).mount("data").unwrap();
    let open =
        |name: &str| export.open_with(name, OpenOptions::new().read(true).write(true).create(true)).unwrap();
    // Nobody else has them open: their mount could keep what is written.
    let (written, appended, listed) = (open("written"), open("appended"), open("listed"));
    written.write_all_at(b"there", 0).unwrap();
    appended.append(b"there").unwrap();
    // With gaps, which whoever writes alone writes too.
    let places: Vec<Extent> = (0..100).map(|number| Extent::new(number * 6, 3)).collect();
    assert_eq!(listed.write_list(&places, &[IoSlice::new(&[b'x'; 300])]).unwrap(), 300);
    while_working(&mut cluster, 3, |cluster| {
        cluster.ceph().kill_mount(0);
        cluster.await_takeovers(1);
        cluster.servers[0].wait();
        cluster.ceph().mount_again(0);
    });
    assert!(cluster.said().contains("has gone from this host"), "{}", cluster.said());
    for name in ["written", "appended"] {
        assert_eq!(std::fs::read(cluster.data().join(name)).unwrap(), b"there", "{name}");
    }
    let list = b"xxx\0\0\0".repeat(100);
    assert_eq!(std::fs::read(cluster.data().join("listed")).unwrap(), list[..597]);
}

// [CLUS-34]
#[test]
#[ignore = "needs ceph"]
fn mount_that_shows_old_data_is_refused() {
    let mut cluster = Cluster::start_on_ceph(1, &[]);
    let caching = cluster.add_mount("caching", &[]);
    let place = cluster.place(caching, &[]);
    let log = place.log.clone();
    let refused = Server::try_start(place).err();
    let refused = refused.unwrap_or_else(|| panic!("it starts: {}", std::fs::read_to_string(log).unwrap()));
    assert!(refused.contains("mount its file system without a cache"), "{refused}");
    let data = std::fs::read_dir(cluster.data()).unwrap();
    assert_eq!(data.count(), 0, "nothing of the check stays");
}

// [CLUS-5]
#[test]
#[ignore = "needs etcd"]
fn stopped_server_is_not_taken_over_before_somebody_cuts_it_off() {
    let mut cluster = Cluster::start(2, &[]);
    let address = format!("etcd://{}/test", cluster.etcd.members());
    let cut_off = |number: &str| {
        let mut command = std::process::Command::new(dafs_tests::program::program());
        command.args(["cut-off", &address, number]).output().unwrap()
    };
    let refused = String::from_utf8(cut_off("1").stderr).unwrap();
    assert!(refused.contains("server 1 is not one whose term is over"), "{refused}");
    while_working(&mut cluster, 2, |cluster| {
        cluster.servers[0].stop();
        // An attempt that did not reach the store says it again.
        await_words(cluster, "/test 1", 1);
        cluster.servers[0].kill();
        cluster.await_takeovers(1);
        cluster.servers[0].start_again();
        cluster.servers[1].stop();
        await_words(cluster, "/test 2", 1);
        // It could write no more if its host were switched off now.
        assert!(cut_off("2").status.success());
        cluster.await_takeovers(2);
        // It finds out when it goes on, and ends.
        cluster.servers[1].go_on();
        cluster.servers[1].wait();
        cluster.servers[1].start_again();
    });
    assert!(cluster.said().contains("another server of the cluster has taken over"));
}

// [CLUS-6]
#[test]
#[ignore = "needs etcd"]
fn server_that_is_ended_hands_its_clients_over() {
    let mut cluster = Cluster::start(3, &[]);
    let done = while_working(&mut cluster, 3, |cluster| {
        for number in [0, 1, 2, 0] {
            cluster.servers[number].end();
            cluster.servers[number].start_again();
        }
    });
    assert!(!cluster.said().contains("the term of another server is over"), "nobody had to take over");
    println!("{done:?}");
}

// [CLUS-7] [CLUS-17]
#[test]
#[ignore = "needs etcd"]
fn servers_wait_for_a_store_that_is_away_and_go_on() {
    let mut cluster = Cluster::start(2, &["--fence-command", FENCE_COMMAND]);
    while_working(&mut cluster, 3, |cluster| {
        cluster.etcd.stop();
        await_words(cluster, "this server's term is over", 2);
        cluster.etcd.go_on();
        await_words(cluster, "a new term has begun", 2);
        cluster.etcd.kill_and_start(0);
    });
    assert!(!cluster.said().contains("taking over"), "both were there");
}

// [CLUS-2] [CLUS-7]
#[test]
#[ignore = "needs etcd"]
fn servers_go_on_while_the_store_gets_another_leader() {
    let mut cluster = Cluster::start_with_members(2, 3, &["--fence-command", FENCE_COMMAND]);
    let done = while_working(&mut cluster, 3, |cluster| {
        for _ in 0..3 {
            let leader = cluster.etcd.leader();
            cluster.etcd.kill_and_start(leader);
        }
    });
    assert!(!cluster.said().contains("taking over"), "both were there");
    println!("{done:?}");
}

// [CLUS-33]
#[test]
#[ignore = "needs etcd"]
fn store_without_room_refuses_what_it_must_know_of() {
    let cluster = Cluster::start(1, &[]);
    let export = cluster.session(0).mount("data").unwrap();
    let open =
        |name: &str| export.open_with(name, OpenOptions::new().read(true).write(true).create(true)).unwrap();
    let file = open("file");
    file.append(b"before").unwrap();
    cluster.etcd.await_nothing_pending();
    cluster.etcd.set_full(true);
    let refused = file.append(b"lost").unwrap_err();
    assert_eq!(refused.status(), Some(Status::NO_SPACE));
    export.create_dir("directory", 0o755).unwrap_err();
    let refused = export.open_with("file", OpenOptions::new().read(true).deny_write(true)).unwrap_err();
    assert_eq!(refused.status(), Some(Status::NO_SPACE));
    file.write_all_at(b"B", 0).unwrap();
    open("other");
    let log = cluster.directory.path().join("refused");
    let said = Server::try_start(Place { log, ..cluster.place(1, &[]) }).err().expect("it starts");
    assert!(said.contains("database space exceeded"), "{said}");
    cluster.etcd.set_full(false);
    file.append(b", after").unwrap();
    export.create_dir("directory", 0o755).unwrap();
    assert_eq!(std::fs::read(cluster.data().join("file")).unwrap(), b"Before, after");
}

// [CLUS-8]
#[test]
#[ignore = "needs etcd"]
fn fence_holds_at_every_server() {
    let mut cluster = Cluster::start(3, &[]);
    let administrator = cluster.session(0);
    let fenced = [7; 16];
    let list = FenceList::of_clients(&[fenced]);
    administrator.mount("data").unwrap().set_fence_list(&list).unwrap();
    let enters = |cluster: &Cluster, number: usize| {
        let config = dafs_client::Config { client_id: Some(fenced), ..config() };
        let session = dafs_client::Session::connect(cluster.url(number), &config).unwrap();
        session.mount("data").is_ok()
    };
    for number in 0..3 {
        assert!(!enters(&cluster, number), "at server {number}");
        let shown = cluster.session(number).mount("data").unwrap().fence_list().unwrap();
        assert_eq!(shown, list);
    }
    // Also at one that starts later.
    cluster.servers[1].end();
    cluster.servers[1].start_again();
    assert!(!enters(&cluster, 1));
    cluster.session(2).mount("data").unwrap().set_fence_list(&FenceList::default()).unwrap();
    assert!((0..3).all(|number| enters(&cluster, number)));
}

// [CLUS-9]
#[test]
#[ignore = "needs etcd"]
fn lock_keeps_out_clients_of_other_servers() {
    let cluster = Cluster::start(2, &[]);
    let file = |server: usize| {
        let export = cluster.session(server).mount("data").unwrap();
        export.open_with("file", OpenOptions::new().read(true).write(true).create(true)).unwrap()
    };
    let (first, second) = (file(0), file(1));
    first.lock(10..20, LockKind::Exclusive).unwrap();
    assert!(!second.try_lock(0..11, LockKind::Shared).unwrap());
    assert!(second.try_lock(0..10, LockKind::Exclusive).unwrap());
    first.lock(10..20, LockKind::Shared).unwrap();
    assert!(second.try_lock(15..25, LockKind::Shared).unwrap());
    assert!(!first.try_lock(10..20, LockKind::Exclusive).unwrap());
    let waiting = std::thread::spawn(move || {
        first.lock(0..30, LockKind::Exclusive).unwrap();
        first
    });
    second.unlock(0..10).unwrap();
    second.unlock(15..25).unwrap();
    let first = waiting.join().unwrap();
    assert!(!second.try_lock(29..30, LockKind::Shared).unwrap());
    drop(first);
    second.lock(0..30, LockKind::Exclusive).unwrap();
}

// [CLUS-12]
#[test]
#[ignore = "needs etcd"]
fn lock_that_needs_one_server_alone_is_refused() {
    let cluster = Cluster::start(1, &[]);
    let export = cluster.session(0).mount("data").unwrap();
    let file = export.open_with("file", OpenOptions::new().read(true).write(true).create(true)).unwrap();
    let mandatory = LockOptions { mandatory: true, ..LockOptions::default() };
    let persistent = LockOptions { persistent: true, ..LockOptions::default() };
    for options in [mandatory, persistent] {
        let refused = file.lock_with(0..1, LockKind::Exclusive, options).unwrap_err();
        assert_eq!(refused.status(), Some(Status::NOT_SUPPORTED));
    }
    file.lock(0..1, LockKind::Exclusive).unwrap();
}

// [CLUS-10] [CLUS-21]
#[test]
#[ignore = "needs etcd"]
fn server_that_does_not_fit_its_cluster_is_refused() {
    let cluster = Cluster::start(1, &[]);
    let log = cluster.directory.path().join("refused");
    let place = Place { log: log.clone(), ..cluster.place(1, &[]) };
    let with = |flags: &[String]| {
        let refused = Server::try_start(Place { flags: flags.to_vec(), ..place.clone() });
        std::fs::remove_file(&log).unwrap();
        refused.err().expect("it starts")
    };
    let flags = place.flags.clone();
    let replaced = |place: usize, flag: String| {
        let mut flags = flags.clone();
        flags[place] = flag;
        flags
    };
    let elsewhere = cluster.directory.path().join("elsewhere");
    std::fs::create_dir(&elsewhere).unwrap();
    let said = with(&replaced(1, format!("data={}", elsewhere.display())));
    assert!(said.contains("other servers export another directory as data"), "{said}");
    let said = with(&replaced(3, format!("etcd://{}/other", cluster.etcd.members())));
    assert!(said.contains("belongs to the cluster test"), "{said}");
    let said = with(&replaced(1, "mem=mem:1M".to_owned()));
    assert!(said.contains("in this server's memory, which no other server has"), "{said}");
    let nobody = Port::new();
    let said = with(&replaced(3, format!("etcd://{}/test", nobody.address())));
    assert!(said.contains("cannot reach the coordination store"), "{said}");
    // Without the cluster it would undo what the cluster keeps.
    let said = with(&flags[..2]);
    assert!(said.contains("belongs to the cluster test"), "{said}");
}
