//! Files that a server on the client's host hands over, and calls back.

use std::fs::File as SystemFile;
use std::io::IoSlice;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use dafs_client::{
    Config as ClientConfig, Export, FenceList, File, Identity, LockKind, LockOptions, OpenOptions, Session,
    Sieve, Status,
};
use dafs_server::access::IdentityMapping;
use dafs_server::config::Config;
use dafs_tests::harness::{Harness, On};
use dafs_tests::suite::assert_status;

const MANDATORY: LockOptions = LockOptions { owner: None, mandatory: true, persistent: false, repair: false };

fn start(on: On, change: impl FnOnce(&mut Config)) -> Harness {
    Harness::start_with(on, |config| {
        config.exports[0].local_open = true;
        change(config);
    })
}

fn open(root: &Export, name: &str) -> File {
    root.open_with(name, OpenOptions::new().read(true).write(true).create(true)).unwrap()
}

/// A client's session, its export, a file and the descriptor of that.
struct Holder {
    session: Session,
    file: File,
    descriptor: SystemFile,
}

impl Holder {
    fn of(harness: &Harness, config: &ClientConfig) -> Self {
        let session = harness.session_with(config);
        let file = open(&session.mount("data").unwrap(), "f");
        let descriptor = file.hand_over().unwrap().into();
        Self { session, file, descriptor }
    }

    fn wait_for_recall(&self) {
        while !self.file.is_recalled() {
            self.session.probe().unwrap();
        }
    }
}

/// Waits while a pending call of another session is not over, and tells that session of time.
fn wait_for<T>(pending: &mut dafs_client::Pending<T>, holder: &Session) {
    while !pending.test() {
        holder.probe().unwrap();
    }
}

mod tcp {
    use super::*;

    // [LOCAL-1]
    #[test]
    fn server_elsewhere_hands_nothing_over() {
        let harness = start(On::Tcp, |_| {});
        let file = open(&harness.session().mount("data").unwrap(), "f");
        assert_status(file.hand_over(), Status::NOT_SUPPORTED, "over tcp");
    }
}

mod shm {
    use super::*;

    // [LOCAL-4]
    #[test]
    #[ignore = "needs root"]
    fn file_is_read_and_written_past_the_server() {
        let harness = start(On::Shm, |_| {});
        let holder = Holder::of(&harness, &ClientConfig::default());
        holder.file.write_at(b"by the server", 0).unwrap();
        let mut found = [0; 13];
        holder.descriptor.read_exact_at(&mut found, 0).unwrap();
        assert_eq!(&found, b"by the server");
        holder.descriptor.write_all_at(b"by itself ", 0).unwrap();
        assert_eq!(holder.file.read_at(&mut found, 0).unwrap(), 13);
        assert_eq!(&found, b"by itself ver");
        // Each is a descriptor with a position and flags of its own, and each goes on when the handle is closed.
        let again: OwnedFd = holder.file.hand_over().unwrap();
        drop(holder.file);
        holder.session.probe().unwrap();
        SystemFile::from(again).write_all_at(b"still", 0).unwrap();
    }

    // [LOCAL-1]
    #[test]
    #[ignore = "needs root"]
    fn only_files_of_exports_that_permit_it_are_handed_over() {
        let harness = start(On::Shm, |config| config.exports[1].local_open = true);
        let file = open(&harness.session().mount("mem").unwrap(), "f");
        assert_status(file.hand_over(), Status::NOT_SUPPORTED, "in memory");
        let harness = Harness::start(On::Shm);
        let root = harness.session().mount("data").unwrap();
        assert_status(open(&root, "f").hand_over(), Status::NOT_SUPPORTED, "without the option");
    }

    // [LOCAL-2] [LOCAL-12]
    #[test]
    #[ignore = "needs root"]
    fn file_is_handed_to_root_alone_who_may_read_and_write_it() {
        let harness = start(On::Shm, |_| {});
        let session = harness.session();
        open(&session.mount("data").unwrap(), "f").set_attributes(&mode(0o666)).unwrap();
        let read = session.mount("data").unwrap().open("f").unwrap();
        assert_status(read.hand_over(), Status::BAD_HANDLE, "open for reading");
        for directory in [harness.scratch(), &harness.data()] {
            let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
            std::fs::set_permissions(directory, open).unwrap();
        }
        let user = session.connect_as(Identity { uid: 1, gid: 1, groups: Vec::new() }).unwrap();
        assert_status(open(&user.mount("data").unwrap(), "f").hand_over(), Status::PERMISSION, "not root");
        let squash = IdentityMapping::Fixed { uid: 1, gid: 1 };
        let harness = start(On::Shm, |config| config.exports[0].squash = squash);
        std::fs::set_permissions(harness.data(), std::os::unix::fs::PermissionsExt::from_mode(0o777))
            .unwrap();
        let squashed = open(&harness.session().mount("data").unwrap(), "f");
        assert_status(squashed.hand_over(), Status::PERMISSION, "root who acts as another");
    }

    fn mode(mode: u32) -> dafs_client::SetAttributes {
        dafs_client::SetAttributes { mode: Some(mode), ..dafs_client::SetAttributes::default() }
    }

    // [LOCAL-3]
    #[test]
    #[ignore = "needs root"]
    fn read_only_export_hands_over_only_where_nobody_can_write() {
        let harness = start(On::Shm, |config| config.exports[0].read_only = true);
        std::fs::write(harness.data().join("f"), "data").unwrap();
        let root = harness.session().mount("data").unwrap();
        assert_status(
            root.open("f").unwrap().hand_over(),
            Status::READ_ONLY,
            "a file system that is written",
        );
    }

    // [LOCAL-6] [LOCAL-8]
    #[test]
    #[ignore = "needs root"]
    fn mandatory_lock_waits_until_the_file_is_given_back() {
        let harness = start(On::Shm, |_| {});
        let holder = Holder::of(&harness, &ClientConfig::default());
        // One's own is in nobody's way.
        holder.file.lock_with(0..1, LockKind::Exclusive, MANDATORY).unwrap();
        holder.file.unlock(0..1).unwrap();
        assert!(!holder.file.is_recalled());
        let other = harness.session();
        let file = open(&other.mount("data").unwrap(), "f");
        let mut pending = file.submit_lock_with(0..10, LockKind::Exclusive, MANDATORY);
        while !holder.file.is_recalled() {
            assert!(!pending.test());
            holder.session.probe().unwrap();
        }
        let another = open(&holder.session.mount("data").unwrap(), "f");
        assert_status(another.hand_over(), Status::BUSY, "it is wanted back");
        drop(holder.file);
        wait_for(&mut pending, &holder.session);
        pending.wait().unwrap();
        assert_status(another.hand_over(), Status::LOCKED, "it is locked");
        file.unlock(0..10).unwrap();
        another.hand_over().unwrap();
    }

    // [LOCAL-5] [LOCAL-6]
    #[test]
    #[ignore = "needs root"]
    fn file_is_given_back_with_its_session() {
        let harness = start(On::Shm, |_| {});
        let holder = Holder::of(&harness, &ClientConfig::default());
        let other = harness.session();
        let file = open(&other.mount("data").unwrap(), "f");
        let mut pending = file.submit_lock_with(0..10, LockKind::Exclusive, MANDATORY);
        holder.wait_for_recall();
        drop((holder.file, holder.session));
        while !pending.test() {
            std::thread::yield_now();
        }
        pending.wait().unwrap();
    }

    // [LOCAL-6] [LOCAL-7]
    #[test]
    #[ignore = "needs root"]
    fn what_is_not_given_back_in_time_is_refused_and_nothing_changes() {
        let harness = start(On::Shm, |config| (config.lease_ms, config.keep_alive_ms) = (2000, 100));
        let config = ClientConfig { client_id: Some([7; 16]), ..ClientConfig::default() };
        let holder = Holder::of(&harness, &config);
        let other = harness.session();
        let root = other.mount("data").unwrap();
        let file = open(&root, "f");
        let mut pending = file.submit_lock_with(0..10, LockKind::Exclusive, MANDATORY);
        wait_for(&mut pending, &holder.session);
        let refused = pending.wait().unwrap_err();
        assert_eq!(refused.status(), Some(Status::BUSY));
        assert!(refused.to_string().contains("past the server"), "{refused}");
        assert!(holder.file.is_recalled());
        assert!(file.test_lock(0..10, LockKind::Exclusive).unwrap().is_none());
        let mut pending = root.submit_open_with("f", OpenOptions::new().read(true).deny_write(true));
        wait_for(&mut pending, &holder.session);
        assert_status(pending.wait(), Status::SHARE_DENIED, "a deny mode");
        let list = FenceList::of_clients(&[[7; 16]]);
        let mut pending = root.submit_set_fence_list(&list);
        wait_for(&mut pending, &holder.session);
        assert_status(pending.wait(), Status::BUSY, "a fence");
        assert!(root.fence_list().unwrap().is_empty());
        // A fence against others takes nothing back.
        root.set_fence_list(&FenceList::of_clients(&[[8; 16]])).unwrap();
        let mut pending = root.submit_set_fence_list(&list);
        drop(holder.file);
        wait_for(&mut pending, &holder.session);
        pending.wait().unwrap();
    }

    // [LOCAL-5] [LOCAL-13]
    #[test]
    #[ignore = "needs root"]
    fn restarted_server_knows_what_was_handed_over() {
        let mut harness = start(On::Shm, |_| {});
        let holder = Holder::of(&harness, &ClientConfig::default());
        harness.restart();
        holder.session.probe().unwrap();
        let file = open(&harness.session().mount("data").unwrap(), "f");
        let mut pending = file.submit_lock_with(0..10, LockKind::Exclusive, MANDATORY);
        while !holder.file.is_recalled() {
            assert!(!pending.test());
            holder.session.probe().unwrap();
        }
        drop(holder.file);
        wait_for(&mut pending, &holder.session);
        pending.wait().unwrap();
    }

    // [LOCAL-9]
    #[test]
    #[ignore = "needs root"]
    fn gaps_of_a_handed_over_file_are_not_written() {
        let harness = start(On::Shm, |_| {});
        let holder = Holder::of(&harness, &ClientConfig::default());
        holder.file.write_at(&[1; 10_000], 0).unwrap();
        let extents: Vec<_> = (0..100).map(|at| dafs_client::Extent { offset: at * 64, len: 8 }).collect();
        let windows = |file: &File| {
            let file = file.with_sieve(Sieve::On).with_explanation();
            file.write_list(&extents, &[IoSlice::new(&[2; 800])]).unwrap();
            file.take_explanation().windows
        };
        let ordinary = open(&holder.session.mount("data").unwrap(), "g");
        ordinary.write_at(&[1; 10_000], 0).unwrap();
        assert!(windows(&ordinary) > 0);
        assert_eq!(windows(&holder.file), 0);
        let found = std::fs::read(harness.data().join("f")).unwrap();
        assert_eq!(found.iter().filter(|byte| **byte == 2).count(), 800);
    }
}
