//! `dafs cp`: what a copy gives away. Modes go by the umask and by what was there, as with cp(1); access control lists and extended
//! attributes stay with what they are of.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::process::Command;

use dafs_tests::harness::On;
use dafs_tests::on_sockets;
use rustix::buffer::spare_capacity;
use rustix::fs::{XattrFlags, getxattr, setxattr};

use crate::programs::{Ran, World, command, dafs};

// Nothing of this depends on how the data travels.
on_sockets! {
    copy_under_a_new_name_applies_the_umask,
    copy_over_a_file_leaves_its_mode_owner_and_list,
    #[ignore = "needs root"]
    copy_over_a_file_of_another_leaves_it_to_him,
    copy_that_preserves_keeps_lists_and_attributes_of_users,
    copy_without_acl_support_gives_the_group_no_more,
}

const LIST: &str = "system.posix_acl_access";
const LIST_OF_NEW: &str = "system.posix_acl_default";

/// An access control list: user 1001 may read and write, the group `group`, and all of that within `mask`.
fn list(group: u16, mask: u16) -> Vec<u8> {
    let nobody = u32::MAX;
    let mut bytes = 2_u32.to_le_bytes().to_vec();
    for (kind, bits, id) in
        [(1_u16, 6_u16, nobody), (2, 6, 1001), (4, group, nobody), (16, mask, nobody), (32, 0, nobody)]
    {
        bytes.extend(kind.to_le_bytes());
        bytes.extend(bits.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

/// The same, of a directory: its owner may look up what is in it.
fn list_of_directory(group: u16, mask: u16) -> Vec<u8> {
    let mut bytes = list(group, mask);
    bytes[6] = 7;
    bytes
}

fn set(path: &Path, name: &str, value: &[u8]) {
    setxattr(path, name, value, XattrFlags::empty()).unwrap();
}

fn get(path: &Path, name: &str) -> Option<Vec<u8>> {
    let mut value = Vec::with_capacity(4096);
    getxattr(path, name, spare_capacity(&mut value)).ok().map(|_| value)
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

fn make(path: &Path, mode: u32, content: &str) {
    fs::write(path, content).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// Runs a command under a umask.
fn under(umask: &str, command: &Command) -> Ran {
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("umask {umask}; exec \"$@\""), "sh"]);
    shell.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    let output = shell.output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    Ran { code: output.status.code().unwrap_or(-1), stdout: output.stdout, stderr }
}

fn cp(words: &[&str]) -> Command {
    let mut cp = Command::new("cp");
    cp.args(words);
    cp
}

// [CMD-98]
fn copy_under_a_new_name_applies_the_umask(on: On) {
    let world = World::start(on);
    let local = |name: &str| world.local(name).to_str().unwrap().to_owned();
    let tree = world.local("tree");
    fs::create_dir(&tree).unwrap();
    for bits in [0o777_u32, 0o666, 0o640, 0o1755, 0o604] {
        make(&tree.join(format!("file{bits:o}")), bits, "x");
        let below = tree.join(format!("directory{bits:o}"));
        fs::create_dir(&below).unwrap();
        fs::set_permissions(&below, fs::Permissions::from_mode(bits | 0o700)).unwrap();
    }
    for umask in ["077", "022", "000", "027"] {
        let name = |what: &str| format!("{what}{umask}");
        under(umask, &cp(&["-r", &local("tree"), &local(&name("cp"))])).succeeded();
        let up = world.url(&format!("data/{}", name("up")));
        under(umask, &command(["cp", "-r", &local("tree"), &up])).succeeded();
        under(umask, &command(["cp", "-r", &up, &local(&name("down"))])).succeeded();
        under(umask, &command(["cp", "--inplace", "-r", &up, &local(&name("inplace"))])).succeeded();
        for entry in fs::read_dir(&tree).unwrap().map(Result::unwrap) {
            let own = |root: &Path| mode(&root.join(entry.file_name()));
            let expected = own(&world.local(&name("cp")));
            for copy in
                [world.data().join(name("up")), world.local(&name("down")), world.local(&name("inplace"))]
            {
                assert_eq!(
                    format!("{:o}", own(&copy)),
                    format!("{expected:o}"),
                    "{} in {}",
                    entry.path().display(),
                    copy.display()
                );
            }
        }
    }
    // All bits of the source are asked for.
    under("077", &command(["cp", "-a", &local("tree"), &world.url("data/all")])).succeeded();
    for name in ["file666", "file1755", "directory777"] {
        assert_eq!(mode(&world.data().join("all").join(name)), mode(&tree.join(name)), "{name}");
    }
}

// [CMD-21] [CMD-99]
fn copy_over_a_file_leaves_its_mode_owner_and_list(on: On) {
    let world = World::start(on);
    let open = world.local("open");
    make(&open, 0o666, "new");
    for flag in ["--jobs=1", "--inplace"] {
        for bits in [0o600_u32, 0o640, 0o444 | 0o200, 0o777] {
            let (there, here, with_cp) =
                (world.data().join("closed"), world.local("here"), world.local("cp"));
            for path in [&there, &here, &with_cp] {
                let _ = fs::remove_file(path);
                make(path, bits, "old");
                set(path, "user.label", b"kept");
            }
            dafs(["cp", flag, open.to_str().unwrap(), &world.url("data/closed")]).succeeded();
            dafs(["cp", flag, &world.url("data/closed"), here.to_str().unwrap()]).succeeded();
            under("022", &cp(&[open.to_str().unwrap(), with_cp.to_str().unwrap()])).succeeded();
            for path in [&there, &here] {
                assert_eq!(mode(path), mode(&with_cp), "{bits:o} {flag} {}", path.display());
                assert_eq!(fs::read(path).unwrap(), b"new");
                assert_eq!(get(path, "user.label").as_deref(), Some(&b"kept"[..]));
            }
            // The list too, whoever is in it.
            for path in [&there, &here] {
                set(path, LIST, &list(0, 6));
            }
            dafs(["cp", flag, open.to_str().unwrap(), &world.url("data/closed")]).succeeded();
            dafs(["cp", flag, &world.url("data/closed"), here.to_str().unwrap()]).succeeded();
            for path in [&there, &here] {
                assert_eq!(get(path, LIST), Some(list(0, 6)), "{bits:o} {flag} {}", path.display());
                assert_eq!(mode(path), 0o660, "{flag}");
            }
        }
    }
    // In a directory that gives what is made in it a list, a file without one stays so.
    for directory in [world.data().join("gives"), world.local("gives")] {
        fs::create_dir(&directory).unwrap();
        make(&directory.join("plain"), 0o640, "old");
        set(&directory, LIST_OF_NEW, &list_of_directory(6, 7));
    }
    dafs(["cp", open.to_str().unwrap(), &world.url("data/gives/plain")]).succeeded();
    dafs(["cp", &world.url("data/gives/plain"), world.local("gives/plain").to_str().unwrap()]).succeeded();
    for path in [world.data().join("gives/plain"), world.local("gives/plain")] {
        assert_eq!((get(&path, LIST), mode(&path)), (None, 0o640), "{}", path.display());
    }
}

// [CMD-21] [CMD-4]
fn copy_over_a_file_of_another_leaves_it_to_him(on: On) {
    let world = World::start_with(on, |server, directory| {
        let data = directory.join("squashed");
        fs::create_dir(&data).unwrap();
        fs::set_permissions(&data, fs::Permissions::from_mode(0o777)).unwrap();
        server.arg("--export").arg(format!("squashed={},squash=1001:1000", data.display()));
    });
    let (new, there) = (world.local("new"), world.local("squashed").join("of root"));
    make(&new, 0o600, "new");
    make(&there, 0o666, "old");
    set(&there, LIST, &list(6, 6));
    let number = fs::metadata(&there).unwrap().ino();
    dafs(["cp", new.to_str().unwrap(), &world.url("squashed/of root")]).succeeded();
    let found = fs::metadata(&there).unwrap();
    assert_eq!((found.uid(), found.ino(), fs::read(&there).unwrap()), (0, number, b"new".to_vec()));
    assert_eq!(get(&there, LIST), Some(list(6, 6)));
    // By root it is replaced, and given to its owner.
    chown(&there, Some(1234), Some(4321)).unwrap();
    let link = world.data().join("of another");
    fs::rename(&there, &link).unwrap();
    dafs(["cp", new.to_str().unwrap(), &world.url("data/of another")]).succeeded();
    let found = fs::metadata(&link).unwrap();
    assert_eq!((found.uid(), found.gid()), (1234, 4321));
    assert!(found.ino() != number, "it is replaced");
    assert_eq!(get(&link, LIST), Some(list(6, 6)));
}

// [CMD-100]
fn copy_that_preserves_keeps_lists_and_attributes_of_users(on: On) {
    let world = World::start(on);
    let tree = world.local("tree");
    fs::create_dir_all(tree.join("below")).unwrap();
    for (name, size) in [("small", 100), ("large", 700_000)] {
        let file = tree.join("below").join(name);
        fs::write(&file, vec![7; size]).unwrap();
        set(&file, LIST, &list(4, 6));
        set(&file, "user.note", b"a\0b");
    }
    make(&tree.join("plain"), 0o664, "x");
    set(&tree.join("below"), LIST, &list_of_directory(0, 7));
    set(&tree.join("below"), LIST_OF_NEW, &list_of_directory(5, 7));
    set(&tree.join("below"), "user.note", b"directory");
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    // From directories that give what is made in them a list: what has none keeps none.
    for root in [world.data(), world.local("back")] {
        fs::create_dir_all(&root).unwrap();
        set(&root, LIST_OF_NEW, &list_of_directory(6, 7));
    }
    dafs(["cp", "-pr", &text(&tree), &world.url("data/up")]).succeeded();
    dafs(["cp", "-a", &world.url("data/up"), &world.url("data/again")]).succeeded();
    let other = World::start(on);
    dafs(["cp", "-a", &world.url("data/up"), &other.url("data/other")]).succeeded();
    dafs(["cp", "-a", &world.url("data/up"), &text(&world.local("back/down"))]).succeeded();
    for copy in [
        world.data().join("up"),
        world.data().join("again"),
        other.data().join("other"),
        world.local("back/down"),
    ] {
        for name in ["below/small", "below/large", "below", "plain", ""] {
            let (original, copy) = (tree.join(name), copy.join(name));
            assert_eq!(mode(&copy), mode(&original), "{}", copy.display());
            for attribute in [LIST, LIST_OF_NEW, "user.note"] {
                assert_eq!(
                    get(&copy, attribute),
                    get(&original, attribute),
                    "{attribute} {}",
                    copy.display()
                );
            }
        }
    }
}

// [CMD-101] [CMD-102]
fn copy_without_acl_support_gives_the_group_no_more(on: On) {
    let world = World::start(on);
    let tree = world.local("tree");
    fs::create_dir(&tree).unwrap();
    for (name, group) in [("closed", 0), ("half", 4)] {
        let file = tree.join(name);
        make(&file, 0o600, "x");
        set(&file, LIST, &list(group, 6));
        assert_eq!(mode(&file), 0o660, "the mask is what is seen");
    }
    let ran = dafs(["cp", "-pr", tree.to_str().unwrap(), &world.url("mem/tree")]);
    assert_eq!((ran.code, ran.stderr.matches("access control lists").count()), (0, 1), "{}", ran.stderr);
    // Back again nothing is lost that was there.
    dafs(["cp", "-pr", &world.url("mem/tree"), world.local("back").to_str().unwrap()]).succeeded();
    assert_eq!(mode(&world.local("back/closed")), 0o600);
    assert_eq!(mode(&world.local("back/half")), 0o640);
}
