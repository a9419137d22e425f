//! Who may do what through a mount.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use dafs_client::{Identity, NodeKind, Status};
use dafs_tests::harness::On;

use crate::{World, dafs};

dafs_tests::on_sockets! {
    #[ignore = "needs fuse"]
    each_user_acts_as_himself_through_root_s_mount,
    #[ignore = "needs fuse"]
    directory_that_one_user_may_search_is_closed_to_another,
    #[ignore = "needs fuse"]
    session_of_another_user_acts_as_that_user,
    #[ignore = "needs fuse"]
    default_access_list_takes_the_place_of_the_umask,
    #[ignore = "needs fuse"]
    access_list_lets_in_whom_the_mode_keeps_out,
}

crate::on_passthrough! {
    #[ignore = "needs fuse"]
    access_list_lets_in_whom_the_mode_keeps_out,
}

/// The users daemon and bin, whose groups have their numbers: over TCP the server asks for the groups of a user of its host.
const USERS: [u32; 2] = [1, 2];

/// Runs a shell command as a user; whether it succeeded.
fn as_user(user: u32, script: &str, directory: &Path) -> bool {
    let mut shell = Command::new("sh");
    shell.args(["-c", script]).current_dir(directory).uid(user).gid(user);
    shell.output().unwrap().status.success()
}

/// Users reach what the harness keeps for root alone.
fn open_way(to: &Path) {
    for above in to.ancestors().filter(|above| above.starts_with("/tmp/") || above.starts_with("/dev/shm/")) {
        if let Ok(found) = fs::metadata(above) {
            let _ = fs::set_permissions(above, fs::Permissions::from_mode(found.mode() | 0o111));
        }
    }
}

// [MOUNT-9]
fn each_user_acts_as_himself_through_root_s_mount(on: On) {
    let world = World::start(on);
    open_way(&world.server.data());
    fs::set_permissions(world.behind(""), fs::Permissions::from_mode(0o777)).unwrap();
    let mount = world.mount("m", &[]);
    open_way(&mount.directory);
    let root = &mount.directory;
    for user in USERS {
        assert!(as_user(user, &format!("umask 027; echo mine > {user}; mkdir d{user}"), root));
        let found = fs::metadata(world.behind(user.to_string())).unwrap();
        assert_eq!((found.uid(), found.gid(), found.mode() & 0o777), (user, user, 0o640));
    }
    let [one, other] = USERS;
    assert!(as_user(one, &format!("cat {one}"), root));
    assert!(!as_user(other, &format!("cat {one}"), root));
    assert!(!as_user(other, &format!("echo > d{one}/x"), root));
    assert!(!as_user(other, &format!("chmod 777 {one}"), root));
    assert!(as_user(one, &format!("chmod 644 {one}"), root));
    assert!(as_user(other, &format!("cat {one}"), root));
    assert!(!as_user(one, &format!("chown {other} {one}"), root));
    chown(mount.at(one.to_string()), Some(other), Some(other)).unwrap();
    assert!(as_user(other, &format!("echo more >> {one}"), root));
}

// [MOUNT-10]
fn directory_that_one_user_may_search_is_closed_to_another(on: On) {
    let world = World::start(on);
    open_way(&world.server.data());
    fs::set_permissions(world.behind(""), fs::Permissions::from_mode(0o777)).unwrap();
    let mount = world.mount("m", &["--name-time", "3600", "--attribute-time", "3600"]);
    open_way(&mount.directory);
    let [one, other] = USERS;
    assert!(as_user(
        one,
        "mkdir -m 700 own && echo secret > own/f && chmod 666 own/f && cat own/f",
        &mount.directory
    ));
    // The kernel knows the names by now.
    assert!(!as_user(other, "cat own/f", &mount.directory));
    assert!(!as_user(other, "stat own/f", &mount.directory));
    assert!(!as_user(other, "ls own", &mount.directory));
    assert!(as_user(one, "chmod 755 own", &mount.directory));
    assert!(as_user(other, "cat own/f", &mount.directory));
    let user = dafs().args(["umount"]).arg(&mount.directory).uid(other).gid(other).output().unwrap();
    assert!(!user.status.success(), "only root takes root's mount away");
    let said = String::from_utf8_lossy(&user.stderr);
    assert!(said.contains("only root") && said.lines().count() == 1, "{said}");
}

// [STOR-183]
fn session_of_another_user_acts_as_that_user(on: On) {
    let world = World::start(on);
    open_way(&world.server.data());
    fs::set_permissions(world.behind(""), fs::Permissions::from_mode(0o777)).unwrap();
    let [user, _] = USERS;
    let own = world.server.session();
    let session = own.connect_as(Identity { uid: user, gid: user, groups: Vec::new() }).unwrap();
    let export = session.mount("data").unwrap();
    let made = export.make_node("fifo", NodeKind::Fifo, 0o600, 0).unwrap();
    assert_eq!((made.uid, made.mode), (user, 0o600));
    let refused = export.make_node("null", NodeKind::CharDevice, 0o666, 0x103).unwrap_err();
    assert_eq!(refused.status(), Some(Status::PERMISSION));
    let root = own.mount("data").unwrap();
    assert_eq!(root.make_node("null", NodeKind::CharDevice, 0o666, 0x103).unwrap().device, 0x103);
    // It goes on as that user when it connects again.
    let again = session.connect_again().unwrap();
    let made = again.mount("data").unwrap().create_dir("d", 0o700).unwrap();
    assert_eq!(made.uid, user);
}

fn default_access_list_takes_the_place_of_the_umask(on: On) {
    let world = World::start(on);
    let mount = world.mount("m", &[]);
    let made = |name: &str| {
        let script = format!("umask 077; echo > {name}/f; mkdir {name}/d; mkfifo {name}/p");
        assert!(
            Command::new("sh")
                .args(["-c", &script])
                .current_dir(&mount.directory)
                .status()
                .unwrap()
                .success()
        );
        ["f", "d", "p"]
            .map(|file| fs::symlink_metadata(world.behind(name).join(file)).unwrap().mode() & 0o777)
    };
    fs::create_dir(mount.at("plain")).unwrap();
    assert_eq!(made("plain"), [0o600, 0o700, 0o600]);
    fs::create_dir(mount.at("shared")).unwrap();
    let list = access_list(&[(OWNER, 7, None), (GROUP, 7, None), (OTHERS, 5, None)]);
    let flags = rustix::fs::XattrFlags::empty();
    match rustix::fs::setxattr(mount.at("shared"), "system.posix_acl_default", &list, flags) {
        // A file system without access control lists has none to take that place.
        Err(rustix::io::Errno::OPNOTSUPP) => return,
        done => done.unwrap(),
    }
    assert_eq!(made("shared"), [0o664, 0o775, 0o664]);
}

/// Of `linux/posix_acl.h`.
const OWNER: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP: u16 = 0x04;
const MASK: u16 = 0x10;
const OTHERS: u16 = 0x20;

/// A list as `linux/posix_acl_xattr.h` has it, version 2: who, the rights, and which user.
fn access_list(entries: &[(u16, u16, Option<u32>)]) -> Vec<u8> {
    let mut list = 2u32.to_le_bytes().to_vec();
    for (tag, rights, user) in entries {
        list.extend(tag.to_le_bytes());
        list.extend(rights.to_le_bytes());
        list.extend(user.unwrap_or(u32::MAX).to_le_bytes());
    }
    list
}

// [MOUNT-18]
fn access_list_lets_in_whom_the_mode_keeps_out(on: On) {
    const NAME: &str = "system.posix_acl_access";
    let world = World::start(on);
    let mount = world.mount("m", &[]);
    open_way(&world.server.data());
    open_way(&mount.directory);
    let [one, other] = USERS;
    let file = mount.at("f");
    fs::write(&file, "data").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    let list = access_list(&[
        (OWNER, 6, None),
        (USER, 6, Some(one)),
        (GROUP, 0, None),
        (MASK, 6, None),
        (OTHERS, 0, None),
    ]);
    let may = |user, script| as_user(user, script, &mount.directory);
    assert!(!may(one, "cat f"));
    match rustix::fs::setxattr(&file, NAME, &list, rustix::fs::XattrFlags::empty()) {
        Err(rustix::io::Errno::OPNOTSUPP) => return,
        done => done.unwrap(),
    }
    assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o660, "the mask is the group's bits");
    assert!(may(one, "cat f && echo more >> f"));
    assert!(!may(other, "cat f"));
    // The mask follows the mode.
    fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
    assert!(may(one, "cat f") && !may(one, "echo more >> f"));
    rustix::fs::removexattr(&file, NAME).unwrap();
    assert!(!may(one, "cat f"));
    assert_eq!(fs::read_to_string(world.behind("f")).unwrap(), "datamore\n");
}
