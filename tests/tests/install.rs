//! `cargo xtask install`: what it puts below a directory works from there, its manual pages are sound, and shells read its completions.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "all of this is test code, helpers included")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use dafs_tests::program::{beside_this_test, xtask};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().unwrap()
}

/// Installs what was built with this test.
fn install(prefix: &Path) {
    let built = beside_this_test("libdafs.a", &["--package", "dafs-c", "--lib"], "dafs-c/verbs");
    beside_this_test("dafs", &["--package", "dafs-cli", "--bin", "dafs"], "dafs-cli/verbs");
    let server = ["--package", "dafs-server", "--bin", "dafs-server"];
    beside_this_test("dafs-server", &server, "dafs-server/verbs");
    let mut command = xtask();
    command.args(["install", "--prefix"]).arg(prefix).arg("--built").arg(built.parent().unwrap());
    passed(command.args(cfg!(feature = "verbs").then_some("--verbs")));
}

/// Where it is installed, once for all tests.
fn installed() -> &'static Path {
    static PREFIX: OnceLock<PathBuf> = OnceLock::new();
    PREFIX.get_or_init(|| {
        let prefix = std::env::current_exe().unwrap().parent().unwrap().join("../installed");
        let _ = fs::remove_dir_all(&prefix);
        install(&prefix);
        prefix.canonicalize().unwrap()
    })
}

#[track_caller]
fn passed(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {said}");
    output
}

/// The names of the files in a directory below the prefix.
fn names(directory: &str) -> BTreeSet<String> {
    let entries = fs::read_dir(installed().join(directory)).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn programs_are_replaced_while_they_run() {
    let directory = tempfile::tempdir().unwrap();
    install(directory.path());
    let socket = directory.path().join("socket");
    let mut server = Command::new(directory.path().join("bin/dafs-server"));
    server.args(["--export", "mem=mem:1M", "--listen"]).arg(format!("shm://{}", socket.display()));
    let mut server = server.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(server.stdout.take().unwrap()), &mut line)
        .unwrap();
    install(directory.path());
    let mut exports = Command::new(directory.path().join("bin/dafs"));
    let told = passed(exports.args(["exports", line.trim().strip_prefix("listening ").unwrap()]));
    server.kill().unwrap();
    server.wait().unwrap();
    assert!(String::from_utf8_lossy(&told.stdout).contains("mem"), "{told:?}");
}

#[test]
fn unit_of_systemd_mounts_what_its_file_says() {
    let unit = fs::read_to_string(installed().join("lib/systemd/system/dafs-mount@.service")).unwrap();
    let directory = tempfile::tempdir().unwrap();
    // As systemd fills in what the file says, of a server that is not there.
    let filled = |line: &str| {
        let line = line
            .replace("$OPTIONS", "--cache none --read-only")
            .replace("${URL}", "dafs+tcp://127.0.0.1:1/data");
        line.replace("%f", &directory.path().to_string_lossy())
    };
    for (key, wanted) in
        [("ExecStart=", "connection refused"), ("ExecStopPost=-", "no dafs export is mounted there")]
    {
        let line = unit.lines().find_map(|line| line.strip_prefix(key)).expect(key);
        let line = filled(line);
        let mut words = line.split(' ');
        let program = words.next().unwrap();
        assert_eq!(Path::new(program), installed().join("bin/dafs"));
        let said = Command::new(program).args(words).output().unwrap();
        let said = String::from_utf8_lossy(&said.stderr).to_lowercase();
        assert!(said.contains(wanted), "{line}: {said}");
    }
}

#[test]
fn program_in_c_is_linked_with_what_is_installed() {
    let (lib, directory) = (installed().join("lib"), tempfile::tempdir().unwrap());
    let program = directory.path().join("hello");
    let mut cc = Command::new("cc");
    cc.arg("-I")
        .arg(installed().join("include"))
        .arg(root().join("bindings/c/examples/hello.c"))
        .arg("-L")
        .arg(&lib);
    passed(cc.arg("-ldafs").arg(format!("-Wl,-rpath,{}", lib.display())).arg("-o").arg(&program));
    let ran = Command::new(&program).args(["http://x", "y"]).output().unwrap();
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.code() == Some(1) && said.contains("http"), "{}: {said}", ran.status);
    let needed = passed(Command::new("readelf").arg("--dynamic").arg(&program)).stdout;
    assert!(String::from_utf8_lossy(&needed).contains("[libdafs.so.0]"));
    let told = fs::read_to_string(lib.join("pkgconfig/dafs.pc")).unwrap();
    assert!(told.contains(&format!("prefix={}\n", installed().display())), "{told}");
}

#[test]
#[ignore = "needs groff"]
fn manual_pages_are_rendered_without_a_warning() {
    let pages = installed().join("share/man");
    let mut count = 0;
    for section in ["man1", "man3", "man8"] {
        for name in names(&format!("share/man/{section}")) {
            // Pages that refer to others name them from here.
            let mut groff = Command::new("groff");
            groff.args(["-man", "-ww", "-Tutf8"]).arg(Path::new(section).join(&name)).current_dir(&pages);
            let output = passed(&mut groff);
            let (text, warnings) = (output.stdout, String::from_utf8_lossy(&output.stderr));
            assert!(warnings.is_empty() && text.len() > 400, "{name}, {} bytes: {warnings}", text.len());
            count += 1;
        }
    }
    assert!(count > 80, "{count} pages");
}

#[test]
fn each_function_and_each_subcommand_has_a_page() {
    let symbols = fs::read_to_string(root().join("bindings/c/dafs.map")).unwrap();
    let functions = symbols
        .lines()
        .filter_map(|line| line.trim().strip_suffix(';'))
        .filter(|name| name.starts_with("dafs_"));
    let pages = names("share/man/man3");
    let missing: Vec<_> = functions.filter(|name| !pages.contains(&format!("{name}.3"))).collect();
    assert!(missing.is_empty() && pages.contains("libdafs.3"), "{missing:?}");
    let help = passed(Command::new(installed().join("bin/dafs")).arg("--help")).stdout;
    let help = String::from_utf8(help).unwrap();
    let commands = help.split("\n\n").find_map(|part| part.strip_prefix("Commands:\n")).unwrap();
    let names_of = commands.lines().filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    let commands: Vec<&str> =
        names_of.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help").collect();
    let pages = names("share/man/man1");
    let missing: Vec<_> = commands.iter().filter(|name| !pages.contains(&format!("dafs-{name}.1"))).collect();
    assert!(missing.is_empty() && commands.len() > 10 && pages.contains("dafs-fence-add.1"), "{missing:?}");
    assert!(names("share/man/man8").contains("dafs-server.8"));
}

#[test]
fn completions_are_read_by_bash() {
    for (program, begun, whole) in [("dafs", "fen", "fence"), ("dafs-server", "--state-f", "--state-file")] {
        let script = installed().join("share/bash-completion/completions").join(program);
        // As bash calls it: the function that the script has named, with the words so far.
        let ask = "set -e; . \"$0\"; name=$(complete -p \"$1\" | sed 's/.* -F \\([^ ]*\\) .*/\\1/'); COMP_WORDS=(\"$1\" \"$2\"); \
                   COMP_CWORD=1; \"$name\" \"$1\" \"$2\" \"$1\" || true; echo \"${COMPREPLY[*]}\"";
        let told = passed(Command::new("bash").args(["-c", ask]).arg(&script).args([program, begun]));
        assert_eq!(String::from_utf8_lossy(&told.stdout).trim(), whole);
    }
    assert!(names("share/zsh/site-functions").contains("_dafs"));
    assert!(names("share/fish/vendor_completions.d").contains("dafs-server.fish"));
}
