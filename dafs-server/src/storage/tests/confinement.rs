//! Nothing leads out of an export.

use dafs_proto::wire::{OpenFlags, SetAttributes, Status};

use super::harness::*;
use crate::storage::*;

/// Every operation that takes a path, at `path`.
fn operations(f: &Fixture, path: &[u8]) -> Vec<FsOp> {
    let at = || f.at(path);
    vec![
        FsOp::Lookup { at: at(), follow: true },
        FsOp::Open { at: at(), flags: OpenFlags::READ, mode: 0, admission: None },
        FsOp::Open { at: at(), flags: RWC, mode: 0o644, admission: None },
        FsOp::Open { at: at(), flags: RW.union(OpenFlags::TRUNCATE), mode: 0, admission: None },
        FsOp::Getattr { at: at(), follow: true },
        FsOp::Setattr {
            at: at(),
            follow: true,
            set: SetAttributes { mode: Some(0o777), ..Default::default() },
        },
    ]
}

// [STOR-1]
#[test]
fn path_that_leaves_the_export_is_refused() {
    for kind in kinds() {
        let mut f = Fixture::new(kind);
        f.mkdir("d").unwrap();
        f.mkdir("d/e").unwrap();
        if let Some(directory) = &f.directory {
            std::fs::write(directory.path().join("secret"), "secret").unwrap();
        }
        for (target, name) in [
            ("../secret", "up"),
            ("/etc/passwd", "absolute"),
            ("/proc/self/root/etc/passwd", "magic"),
            ("d/../../secret", "detour"),
            ("up", "twice"),
        ] {
            f.symlink(target, name).unwrap();
        }
        f.symlink("../../secret", "d/up").unwrap();
        f.symlink("../..", "d/out").unwrap();
        for path in [
            "..",
            "../secret",
            "d/../../secret",
            "d/../..",
            "/",
            "/etc/passwd",
            "up",
            "absolute",
            "magic",
            "detour",
            "twice",
            "d/up",
            "d/out/secret",
            "d/e/../../../secret",
            "./../secret",
        ] {
            for op in operations(&f, path.as_bytes()) {
                let told = format!("{kind:?} {path} {op:?}");
                let result = f.run(op);
                assert!(matches!(result, Err(Status::CROSS_DEVICE)), "{told}: {result:?}");
            }
        }
        for path in ["../new", "d/out/new", "d/../../new"] {
            assert_eq!(f.mkdir(path), Err(Status::CROSS_DEVICE), "{path}");
            assert_eq!(f.symlink("x", path), Err(Status::CROSS_DEVICE), "{path}");
            assert_eq!(f.remove(path, false), Err(Status::CROSS_DEVICE), "{path}");
            assert_eq!(f.rename("d/e", path, true), Err(Status::CROSS_DEVICE), "{path}");
            assert_eq!(f.rename(path, "d/f", true), Err(Status::CROSS_DEVICE), "{path}");
        }
        if let Some(directory) = &f.directory {
            assert_eq!(std::fs::read(directory.path().join("secret")).unwrap(), b"secret");
            assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 2);
        }
    }
}

// [STOR-43]
#[test]
fn link_inside_the_export_is_followed_from_any_node() {
    for kind in kinds() {
        let mut f = Fixture::new(kind);
        f.mkdir("a").unwrap();
        f.mkdir("b").unwrap();
        let node = f.open("b/file", RWC).unwrap();
        f.write(node, 0, b"inside").unwrap();
        f.symlink("../b/file", "a/link").unwrap();
        let a = f.lookup("a").unwrap();
        for path in ["link", "../b/file", "../a/link"] {
            let opened = f.open_at(At { node: a, path: path.into() }, OpenFlags::READ).unwrap();
            assert_eq!(f.read(opened, 0, 10).unwrap(), b"inside", "{kind:?} {path}");
        }
        let out = f.open_at(At { node: a, path: b"../../x".to_vec() }, OpenFlags::READ);
        assert_eq!(out, Err(Status::CROSS_DEVICE), "{kind:?}");
    }
}

// [STOR-3] [WIRE-5] [WIRE-41]
#[test]
fn name_that_is_no_plain_name_is_refused() {
    for kind in kinds() {
        let mut f = Fixture::new(kind);
        f.mkdir("d").unwrap();
        for path in ["", ".", "..", "d/.", "d/..", "a\0b"] {
            assert_eq!(f.mkdir(path), Err(Status::INVALID), "{kind:?} {path:?}");
            assert_eq!(f.remove(path, true), Err(Status::INVALID), "{kind:?} {path:?}");
            assert_eq!(f.rename("d", path, true), Err(Status::INVALID), "{kind:?} {path:?}");
        }
        for len in [254, 255, 256] {
            let expected = if len > 255 { Err(Status::NAME_TOO_LONG) } else { Ok(()) };
            assert_eq!(f.mkdir("x".repeat(len)).map(|_| ()), expected, "{kind:?} {len}");
        }
        assert_eq!(f.stat("d\0").err(), Some(Status::INVALID));
        // What a link leads to has no longer names.
        let (fits, beyond) = ("x".repeat(255), "y".repeat(256));
        for (index, target) in
            [beyond.clone(), format!("d/{beyond}"), format!("{beyond}/f")].iter().enumerate()
        {
            let link = format!("link{index}");
            f.symlink(target, &link).unwrap();
            assert_eq!(f.open(&link, RWC), Err(Status::NAME_TOO_LONG), "{kind:?} {target}");
            assert_eq!(f.lookup(format!("{link}/f")), Err(Status::NAME_TOO_LONG), "{kind:?} {target}");
        }
        f.symlink(format!("{fits}/f"), "link").unwrap();
        f.open("link", RWC).unwrap();
    }
}

// [STOR-42]
#[test]
fn link_swapped_while_resolving_never_leads_out() {
    for kind in kinds() {
        let mut f = Fixture::new(kind);
        let Some(directory) = &f.directory else { continue };
        let root = directory.path().join("root");
        std::fs::write(directory.path().join("secret"), "secret").unwrap();
        f.mkdir("dir").unwrap();
        let inside = f.open("dir/secret", RWC).unwrap();
        f.write(inside, 0, b"inside").unwrap();
        f.symlink("..", "link").unwrap();
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    // `x` is now the directory, now the link out of the export.
                    let _ = std::fs::rename(root.join("dir"), root.join("x"));
                    let _ = std::fs::rename(root.join("x"), root.join("dir"));
                    let _ = std::fs::rename(root.join("link"), root.join("x"));
                    let _ = std::fs::rename(root.join("x"), root.join("link"));
                }
            });
            for _ in 0..2000 {
                if let Ok(node) = f.open("x/secret", OpenFlags::READ) {
                    assert_eq!(f.read(node, 0, 10).unwrap(), b"inside");
                    f.storage.close(node);
                }
            }
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
        });
    }
}
