//! The form in which mount(8) asks for a mount: `mount.fuse.dafs URL DIRECTORY [-sfnv] [-o OPTION,…]`, as from a line of fstab(5).

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

/// Names under which mount(8) starts a helper.
const NAMES: [&str; 3] = ["mount.fuse.dafs", "mount.fuse3.dafs", "mount.dafs"];

/// Options of every file system, which mean nothing here, or are done by whoever starts the helper.
const IGNORED: [&str; 23] = [
    "rw",
    "defaults",
    "auto",
    "noauto",
    "user",
    "nouser",
    "users",
    "group",
    "owner",
    "nofail",
    "_netdev",
    "nosuid",
    "nodev",
    "exec",
    "relatime",
    "noatime",
    "atime",
    "async",
    "allow_other",
    // Those that the kernel shows, which a remount repeats.
    "default_permissions",
    "user_id",
    "group_id",
    "max_read",
];

/// Flags of `dafs mount` that options turn on.
const SWITCHES: [(&str, &str); 6] = [
    ("ro", "--read-only"),
    ("noexec", "--no-exec"),
    ("remount", "--remount"),
    ("private", "--private"),
    ("writeback", "--writeback"),
    ("no_passthrough", "--no-passthrough"),
];

/// Flags of `dafs mount` that options give a value.
const VALUES: [(&str, &str); 5] = [
    ("cache", "--cache"),
    ("name_time", "--name-time"),
    ("attribute_time", "--attribute-time"),
    ("key_file", "--key-file"),
    ("timeout", "--timeout"),
];

/// The words of the command line, with the program; those of a helper of mount(8) made into those of `dafs mount`.
pub(crate) fn words() -> Result<Vec<OsString>, String> {
    let words: Vec<OsString> = std::env::args_os().collect();
    let name = words.first().and_then(|program| Path::new(program).file_name()).unwrap_or_default();
    match NAMES.iter().any(|helper| name == *helper) {
        true => translated(words),
        false => Ok(words),
    }
}

fn translated(words: Vec<OsString>) -> Result<Vec<OsString>, String> {
    let mut words = words.into_iter();
    let mut made = vec![words.next().unwrap_or_default(), "mount".into()];
    let mut places = Vec::new();
    while let Some(word) = words.next() {
        match word.as_bytes() {
            b"-o" => add_options(&words.next().unwrap_or_default(), &mut made)?,
            // Be lenient, fake, write no mtab, say more: nothing of that is done here. What is mounted has its own type.
            b"-s" | b"-n" | b"-v" => {}
            b"-f" => return Ok(vec![made.swap_remove(0), "--version".into()]),
            b"-t" => drop(words.next()),
            _ => places.push(word),
        }
    }
    made.push("--".into());
    made.extend(places);
    Ok(made)
}

fn add_options(list: &OsStr, made: &mut Vec<OsString>) -> Result<(), String> {
    for option in list.as_bytes().split(|byte| *byte == b',').filter(|option| !option.is_empty()) {
        let (name, value) = match option.iter().position(|byte| *byte == b'=') {
            Some(at) => (&option[..at], Some(&option[at + 1..])),
            None => (option, None),
        };
        let is = |known: &str| name == known.as_bytes();
        let switch = SWITCHES.iter().find(|(known, _)| is(known) && value.is_none());
        let valued = VALUES.iter().find(|(known, _)| is(known)).zip(value);
        if let Some((_, flag)) = switch {
            made.push(flag.into());
        } else if let Some(((_, flag), value)) = valued {
            made.push(flag.into());
            made.push(OsString::from_vec(value.to_vec()));
        } else if !(IGNORED.iter().any(|known| is(known)) || name.starts_with(b"x-")) {
            let option = String::from_utf8_lossy(option);
            return Err(format!("cannot mount with the option {option}: dafs has none of that name"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(words: &[&str]) -> Result<Vec<String>, String> {
        let words = translated(words.iter().map(OsString::from).collect())?;
        Ok(words.into_iter().map(|word| word.into_string().unwrap()).collect())
    }

    #[test]
    fn line_of_fstab_becomes_a_command() {
        let line = [
            "mount.fuse.dafs",
            "dafs://h/e",
            "/mnt",
            "-o",
            "ro,noauto,x-systemd.automount,cache=lasting,key_file=/k",
        ];
        let wanted = "mount.fuse.dafs mount --read-only --cache lasting --key-file /k -- dafs://h/e /mnt";
        assert_eq!(made(&line).unwrap().join(" "), wanted);
        let refused = made(&["mount.dafs", "dafs://h/e", "/mnt", "-o", "rw,cash=none"]).unwrap_err();
        assert_eq!(refused, "cannot mount with the option cash=none: dafs has none of that name");
        let again =
            ["mount.fuse.dafs", "dafs://h/e", "/mnt", "-o", "ro,nosuid,noexec,user_id=0,allow_other,remount"];
        let wanted = "mount.fuse.dafs mount --read-only --no-exec --remount -- dafs://h/e /mnt";
        assert_eq!(made(&again).unwrap().join(" "), wanted);
    }
}
