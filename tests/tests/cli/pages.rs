//! The front page, the guide and the pages of the crates: commands run as they are written, and options that they name exist.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::programs::program;

/// Programs whose options the pages may name.
const PROGRAMS: [&str; 3] = ["dafs", "dafs-server", "dafs-bench"];

/// What begins a command that goes on until it is ended.
const SERVER: &str = "cargo run --release --bin dafs-server -- ";

/// Makes what is after it run alone: with the default addresses free, a network of its own, and the user that it was started by.
const ALONE: &str = r#"
mount -t tmpfs tmpfs /run && chmod 555 /run && ip link set lo up || exit 125
if [ "$DAFS_USER" = 0 ]; then chmod 755 /run; exec "$@"; fi
exec unshare --user --map-user="$DAFS_USER" --map-group="$DAFS_GROUP" "$@"
"#;

/// The same in a bare Debian, `$0`, as the user `$1`, with nothing of this machine but programs and checkout.
const IN_DEBIAN: &str = r#"
ip link set lo up && mount -t proc proc "$0/proc" && mount -t tmpfs tmpfs "$0/run" && mount -t tmpfs tmpfs "$0/tmp" \
    && mount --bind "$DAFS_PROGRAMS" "$0/mnt" && mount --bind . "$0/srv" && chmod 1777 "$0/tmp" || exit 125
exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin DAFS_PROGRAMS=/mnt DAFS_READY=/tmp \
    chroot "$0" sh -c 'cd /srv && exec setpriv --reuid="$0" --regid="$0" --init-groups --reset-env \
        env DAFS_PROGRAMS=/mnt DAFS_READY=/tmp sh -c "$1"' "$1" "$2"
"#;

/// Before the commands of a page. cargo would build for minutes what it has built with this test.
const PREPARATION: &str = r#"
set -e
servers=
trap 'for server in $servers; do kill "$server"; done' EXIT
cargo() {
    [ "$1 $2 $3 $5" = "run --release --bin --" ]
    program=$DAFS_PROGRAMS/$4
    shift 5
    exec "$program" "$@"
}
"#;

// [ACC-43] [ACC-99]
#[test]
#[ignore = "needs own-network"]
fn commands_of_the_readme_run_as_they_are_written() {
    let page = fs::read_to_string(root().join("README.md")).unwrap();
    let commands = blocks(&page);
    assert!(commands.len() >= 2, "{commands:?}");
    let directory = tempfile::tempdir().unwrap();
    let user = rustix::process::geteuid();
    let mut command = Command::new("unshare");
    command.args(["--net", "--mount"]);
    if !user.is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    command.args(["sh", "-c", ALONE, "sh", "sh", "-c", &script(&commands)]);
    command.env("DAFS_USER", user.to_string()).env("DAFS_GROUP", rustix::process::getegid().to_string());
    command.env("DAFS_PROGRAMS", program("dafs").parent().unwrap()).env("DAFS_READY", directory.path());
    command.env_remove("DAFS_KEY_FILE").env_remove("DAFS_SHM_SOCKET").env_remove("XDG_RUNTIME_DIR");
    let output = command.current_dir(root()).output().unwrap();
    assert!(
        output.status.success(),
        "{}: {}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

// [ACC-43] [ACC-99]
#[test]
#[ignore = "needs debian-root"]
fn readme_commands_run_in_bare_debian_as_root_and_user() {
    let page = fs::read_to_string(root().join("README.md")).unwrap();
    let script = script(&blocks(&page));
    // `cargo xtask` makes it, with the user.
    let debian = root().join("target/debian-root");
    for user in ["root", "user"] {
        let mut command = Command::new("unshare");
        // What is left running ends with the first process.
        command.args(["--net", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", IN_DEBIAN]);
        command.arg(&debian).args([user, &script]).current_dir(root());
        command.env("DAFS_PROGRAMS", program("dafs").parent().unwrap());
        let output = command.output().unwrap();
        let said = [output.stdout, output.stderr].concat();
        assert!(output.status.success(), "{user}, {}: {}", output.status, String::from_utf8_lossy(&said));
    }
}

/// Runs one command after the other; the next begins when a server says that it listens.
fn script(commands: &[&str]) -> String {
    let mut script = PREPARATION.to_owned();
    for (index, command) in commands.iter().enumerate() {
        if command.starts_with(SERVER) {
            let ready = format!("\"$DAFS_READY/{index}\"");
            // Open to the end, so that the server can go on to print.
            script.push_str(&format!(
                "mkfifo {ready}\n({command}) >{ready} &\nservers=\"$servers $!\"\nexec 3<{ready}\nread -r line <&3\n\
                 case $line in listening*) ;; *) exit 1 ;; esac\n"
            ));
        } else {
            script.push_str(&format!("({command})\n"));
        }
    }
    script
}

#[test]
fn options_that_the_pages_name_exist() {
    let mut helps = Helps::default();
    let mut faults = Vec::new();
    let mut count = 0;
    for path in pages() {
        let text = fs::read_to_string(&path).unwrap();
        for command in blocks(&text).into_iter().chain(spans(&text)).flat_map(simple_commands) {
            count += 1;
            let unknown = unknown_options(&command, &mut |words| helps.of(words));
            faults.extend(unknown.into_iter().map(|fault| format!("{}: {fault}", path.display())));
        }
    }
    assert!(count > 50, "{count} commands");
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn option_that_does_not_exist_is_found_and_others_are_not() {
    let mut help = |words: &[&str]| match words {
        ["dafs"] => "Commands:\n  cp     Copy\n  fence  Fence\n\nOptions:\n  --key-file <FILE>\n".to_owned(),
        ["dafs", "fence"] => "Commands:\n  add    Fence clients off\n         cp is not one\n\n".to_owned(),
        ["dafs", "fence", "add"] => "Options:\n      --key <NAME>\n".to_owned(),
        ["dafs", "cp"] => "Options:\n  -r, --recursive\n      --jobs <COUNT>\n".to_owned(),
        _ => panic!("{words:?}"),
    };
    let mut unknown = |line| -> Vec<String> {
        simple_commands(line).iter().flat_map(|command| unknown_options(command, &mut help)).collect()
    };
    let known = "(umask 077; target/release/dafs --key-file keys cp -r --jobs=3 a b && true --nothing)";
    assert_eq!(unknown(known), Vec::<String>::new());
    assert_eq!(unknown("dafs cp --job 3 a b"), ["dafs cp has no --job"]);
    assert_eq!(unknown("dafs fence add --key a cp --recursive"), ["dafs fence add has no --recursive"]);
    assert_eq!(unknown("cargo run --release --bin dafs -- cp -rx a b"), ["dafs cp has no -x"]);
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn pages() -> Vec<PathBuf> {
    let own = ["README.md", "dafs-client/README.md", "dafs-server/README.md", "dafs-cli/README.md"];
    let guide = fs::read_dir(root().join("docs/src")).unwrap().map(|entry| entry.unwrap().path());
    let mut pages: Vec<PathBuf> = own.iter().map(|page| root().join(page)).chain(guide).collect();
    pages.sort();
    pages
}

/// Lines of commands: those that are indented by four spaces, outside fences.
fn blocks(page: &str) -> Vec<&str> {
    let mut in_fence = false;
    let mut found = Vec::new();
    for line in page.lines() {
        in_fence ^= line.starts_with("```");
        found.extend(line.strip_prefix("    ").filter(|_| !in_fence));
    }
    found
}

/// What stands in backquotes.
fn spans(page: &str) -> Vec<&str> {
    page.lines()
        .filter(|line| !line.starts_with("```"))
        .flat_map(|line| line.split('`').skip(1).step_by(2))
        .collect()
}

/// The commands of a line of shell, as words.
fn simple_commands(line: &str) -> Vec<Vec<&str>> {
    let commands = line.split([';', '&', '|', '(', ')', '>', '<']).map(|command| {
        let words: Vec<&str> = command.split_whitespace().collect();
        match words[..] {
            ["cargo", "run", "--release", "--bin", name, "--", ..] => [&[name], &words[6..]].concat(),
            _ => words,
        }
    });
    commands.filter(|words| !words.is_empty()).collect()
}

/// Options of a command that its help does not have; of a program that is not ours, none.
fn unknown_options(words: &[&str], help: &mut dyn FnMut(&[&str]) -> String) -> Vec<String> {
    let name = words[0].rsplit('/').next().unwrap_or_default();
    if !PROGRAMS.contains(&name) {
        return Vec::new();
    }
    let mut of = vec![name];
    let mut helps = vec![help(&of)];
    for word in &words[1..] {
        if helps.last().is_some_and(|text| subcommands(text).contains(word)) {
            of.push(word);
            helps.push(help(&of));
        }
    }
    let text = helps.concat();
    let mut unknown = Vec::new();
    for word in &words[1..] {
        let options = match word.strip_prefix('-') {
            Some(long) if long.starts_with('-') => {
                vec![word.split('=').next().unwrap_or_default().to_owned()]
            }
            Some(short) => short.chars().map(|letter| format!("-{letter}")).collect(),
            None => Vec::new(),
        };
        unknown.extend(options.into_iter().filter(|option| !names(&text, option)));
    }
    unknown.iter().map(|option| format!("{} has no {option}", of.join(" "))).collect()
}

/// Whether a help has this option where options begin.
fn names(help: &str, option: &str) -> bool {
    help.lines().any(|line| {
        let line = line.trim_start();
        line.starts_with('-')
            && line
                .split([' ', ',', '.'])
                .take_while(|word| !word.starts_with('<'))
                .any(|word| word == option)
    })
}

fn subcommands(help: &str) -> Vec<&str> {
    let listed =
        help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    // Words of their description may go on in the next line.
    let names =
        listed.filter(|line| !line.starts_with("   ")).filter_map(|line| line.split_whitespace().next());
    names.filter(|name| *name != "help").collect()
}

/// The helps that were asked for.
#[derive(Default)]
struct Helps(BTreeMap<String, String>);

impl Helps {
    fn of(&mut self, words: &[&str]) -> String {
        let ask = || {
            let output = Command::new(program(words[0])).args(&words[1..]).arg("--help").output().unwrap();
            assert!(output.status.success(), "{words:?}");
            String::from_utf8(output.stdout).unwrap()
        };
        self.0.entry(words.join(" ")).or_insert_with(ask).clone()
    }
}
