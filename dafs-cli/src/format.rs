//! Modes, owners, sizes and times as `ls` writes them; attributes as JSON.

use std::collections::HashMap;

use dafs_client::{Attributes, FileKind, Timestamp};
use serde_json::{Value, json};

/// `drwxr-xr-x`.
pub(crate) fn mode(kind: FileKind, mode: u32) -> String {
    let mut text = String::with_capacity(10);
    text.push(match kind {
        FileKind::File => '-',
        FileKind::Directory => 'd',
        FileKind::Symlink => 'l',
        FileKind::BlockDevice => 'b',
        FileKind::CharDevice => 'c',
        FileKind::Fifo => 'p',
        FileKind::Socket => 's',
    });
    for (shift, special, letter) in [(6, 0o4000, 's'), (3, 0o2000, 's'), (0, 0o1000, 't')] {
        let bits = mode >> shift;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (mode & special != 0, bits & 1 != 0) {
            (true, true) => letter,
            (true, false) => letter.to_ascii_uppercase(),
            (false, true) => 'x',
            (false, false) => '-',
        });
    }
    text
}

/// A kind in words.
pub(crate) fn kind_name(kind: FileKind) -> &'static str {
    match kind {
        FileKind::File => "regular file",
        FileKind::Directory => "directory",
        FileKind::Symlink => "symbolic link",
        FileKind::BlockDevice => "block device",
        FileKind::CharDevice => "character device",
        FileKind::Fifo => "fifo",
        FileKind::Socket => "socket",
    }
}

/// `4096`, or `4.0K`.
pub(crate) fn size(bytes: u64, human_readable: bool) -> String {
    if !human_readable || bytes < 1024 {
        return bytes.to_string();
    }
    let mut value = bytes as f64;
    let mut unit = 0;
    // Rounded up, as `ls` and `df` do, so "1024K" is "1.0M".
    while value >= 1024.0 || (value.ceil() >= 1024.0 && unit > 0) {
        value /= 1024.0;
        unit += 1;
    }
    let unit = ["", "K", "M", "G", "T", "P", "E"].get(unit).unwrap_or(&"E");
    let tenth = (value * 10.0).ceil() / 10.0;
    if tenth < 10.0 { format!("{tenth:.1}{unit}") } else { format!("{}{unit}", value.ceil()) }
}

/// Names of users and groups of this machine, each asked once.
#[derive(Default)]
pub(crate) struct Owners {
    users: HashMap<u32, String>,
    groups: HashMap<u32, String>,
}

impl Owners {
    pub(crate) fn user(&mut self, uid: u32) -> &str {
        self.users.entry(uid).or_insert_with(|| match nix::unistd::User::from_uid(uid.into()) {
            Ok(Some(user)) => user.name,
            _ => uid.to_string(),
        })
    }

    pub(crate) fn group(&mut self, gid: u32) -> &str {
        self.groups.entry(gid).or_insert_with(|| match nix::unistd::Group::from_gid(gid.into()) {
            Ok(Some(group)) => group.name,
            _ => gid.to_string(),
        })
    }
}

/// Attributes for programs. `name` is for people where it is no UTF-8, and `name_hex` is then exact.
pub(crate) fn attributes_json(name: &[u8], attributes: &Attributes, target: Option<&[u8]>) -> Value {
    let mut value = json!({
        "kind": kind_name(attributes.kind),
        "mode": format!("{:04o}", attributes.mode),
        "links": attributes.links,
        "uid": attributes.uid,
        "gid": attributes.gid,
        "size": attributes.size,
        "allocated": attributes.allocated,
        "file_id": attributes.file_id,
        "fs_id": attributes.fs_id,
        "atime": time_json(attributes.atime),
        "mtime": time_json(attributes.mtime),
        "ctime": time_json(attributes.ctime),
    });
    put_name(&mut value, "name", name);
    if let Some(target) = target {
        put_name(&mut value, "target", target);
    }
    value
}

/// Puts bytes that are probably text under `key`, and their exact form beside it where they are not.
pub(crate) fn put_name(value: &mut Value, key: &str, name: &[u8]) {
    value[key] = String::from_utf8_lossy(name).into();
    if std::str::from_utf8(name).is_err() {
        value[format!("{key}_hex")] =
            name.iter().map(|byte| format!("{byte:02x}")).collect::<String>().into();
    }
}

fn time_json(time: Timestamp) -> Value {
    json!({ "seconds": time.seconds, "nanoseconds": time.nanoseconds })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mode_with_special_bits_is_written_as_ls_does() {
        for (kind, bits, expected) in [
            (FileKind::File, 0o644, "-rw-r--r--"),
            (FileKind::Directory, 0o1777, "drwxrwxrwt"),
            (FileKind::File, 0o4755, "-rwsr-xr-x"),
            (FileKind::File, 0o6644, "-rwSr-Sr--"),
            (FileKind::Symlink, 0o777, "lrwxrwxrwx"),
            (FileKind::Directory, 0o1776, "drwxrwxrwT"),
        ] {
            assert_eq!(mode(kind, bits), expected);
        }
    }

    #[test]
    fn size_at_unit_borders_is_rounded_up() {
        for (bytes, expected) in [
            (0, "0"),
            (1023, "1023"),
            (1024, "1.0K"),
            (1025, "1.1K"),
            (10 * 1024, "10K"),
            (1024 * 1024 - 1, "1.0M"),
            (1 << 20, "1.0M"),
            (5 << 30, "5.0G"),
            (u64::MAX, "16E"),
        ] {
            assert_eq!(size(bytes, true), expected);
        }
        assert_eq!(size(123_456, false), "123456");
    }
}
