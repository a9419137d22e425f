//! A coordination store that is reached over TLS, or by a user.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use dafs_client::{LockKind, OpenOptions};
use dafs_tests::cluster::etcd::Etcd;
use dafs_tests::cluster::{Cluster, Place, Server};
use dafs_tests::program::program;

/// Makes an authority, and certificates that it has signed: of etcd on this host, and of clients. They are good for a day.
fn make_certificates(directory: &Path, authority: &str) {
    let openssl = |arguments: &str| {
        let made =
            Command::new("openssl").args(arguments.split(' ')).current_dir(directory).output().unwrap();
        assert!(made.status.success(), "{arguments}: {}", String::from_utf8_lossy(&made.stderr));
    };
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes";
    openssl(&format!(
        "req -x509 {key} -keyout {authority}.key -out {authority}.pem -days 1 -subj /CN={authority}"
    ));
    std::fs::write(directory.join("names"), "subjectAltName=IP:127.0.0.1").unwrap();
    for name in ["etcd", "server"] {
        openssl(&format!("req {key} -keyout {name}.key -out {name}.request -subj /CN={name}"));
        openssl(&format!(
            "x509 -req -in {name}.request -CA {authority}.pem -CAkey {authority}.key -CAcreateserial -days 1 -extfile names \
             -out {name}.pem"
        ));
    }
}

fn flags(directory: &Path, files: &[(&str, &str)]) -> Vec<String> {
    let flag = |(flag, file): &(&str, &str)| {
        [format!("--etcd-{flag}-file"), directory.join(file).display().to_string()]
    };
    files.iter().flat_map(flag).collect()
}

/// What a server says that does not start with these ways to reach the store.
fn refused(cluster: &mut Cluster, scheme: &'static str, access: Vec<String>) -> String {
    let before =
        (std::mem::replace(&mut cluster.scheme, scheme), std::mem::replace(&mut cluster.access, access));
    let log = cluster.directory.path().join("refused");
    let said =
        Server::try_start(Place { log: log.clone(), ..cluster.place(9, &[]) }).err().expect("it starts");
    std::fs::remove_file(log).unwrap();
    (cluster.scheme, cluster.access) = before;
    said
}

fn works(cluster: &Cluster) {
    let export = cluster.session(0).mount("data").unwrap();
    let file = export.open_with("file", OpenOptions::new().read(true).write(true).create(true)).unwrap();
    file.append(b"data").unwrap();
    file.lock(0..1, LockKind::Exclusive).unwrap();
    file.unlock(0..1).unwrap();
}

// [CLUS-40] [CLUS-41]
#[test]
#[ignore = "needs etcd-tls"]
fn store_is_reached_over_tls_with_certificates_of_both_sides() {
    let made = tempfile::tempdir().unwrap();
    let directory = made.path();
    make_certificates(directory, "other");
    make_certificates(directory, "ca");
    let path = |name: &str| directory.join(name).display().to_string();
    let more = [
        "--cert-file",
        &path("etcd.pem"),
        "--key-file",
        &path("etcd.key"),
        "--trusted-ca-file",
        &path("ca.pem"),
    ];
    let etcd = Etcd::start_with(1, &[&more[..], &["--client-cert-auth"]].concat(), true);
    let own = [("certificate", "server.pem"), ("key", "server.key")];
    let all = |files: &[(&str, &str)]| flags(directory, files);
    let access = all(&[&own[..], &[("ca", "ca.pem")]].concat());
    let mut cluster = Cluster::with_etcd(etcd, "etcds", access.clone());
    cluster.serve(2, &[]);
    works(&cluster);
    let command = |access: &[String]| {
        let address = format!("etcds://{}/test", cluster.etcd.members());
        let told = Command::new(program()).args(["cut-off", &address, "1"]).args(access).output().unwrap();
        String::from_utf8(told.stderr).unwrap()
    };
    let said = command(&access);
    assert!(said.contains("server 1 is not one whose term is over"), "{said}");
    for (scheme, files, says) in [
        ("etcd", &[][..], "if it speaks TLS, write etcds://"),
        ("etcds", &[("ca", "ca.pem")], "if it wants a certificate, give --etcd-certificate-file"),
        ("etcds", &[("ca", "other.pem"), own[0], own[1]], "UnknownIssuer"),
        ("etcds", &[("ca", "ca.pem"), own[0], ("key", "etcd.key")], "server.pem: keys may not be consistent"),
    ] {
        let said = refused(&mut cluster, scheme, all(files));
        assert!(said.contains(says), "{says}: {said}");
    }
    assert!(!cluster.said().contains("PRIVATE KEY"));
}

// [CLUS-41] [CLUS-42]
#[test]
#[ignore = "needs etcd"]
fn store_is_asked_as_a_user_also_when_it_has_forgotten_that() {
    let made = tempfile::tempdir().unwrap();
    let password = |name: &str, word: &str| {
        let path = made.path().join(name);
        std::fs::write(&path, format!("{word}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        ["--etcd-user", "dafs", "--etcd-password-file", path.to_str().unwrap()].map(str::to_owned).to_vec()
    };
    let etcd = Etcd::start_with(1, &["--bcrypt-cost", "4"], false);
    etcd.want_user("open-sesame");
    let access = password("right", "open-sesame");
    let mut cluster = Cluster::with_etcd(etcd, "etcd", access);
    cluster.serve(2, &[]);
    works(&cluster);
    let said = refused(&mut cluster, "etcd", password("wrong", "open-barley"));
    assert!(said.contains("authentication failed, invalid user ID or password (--etcd-user dafs)"), "{said}");
    let said = refused(&mut cluster, "etcd", Vec::new());
    assert!(said.contains("user name is empty; it wants a user: --etcd-user"), "{said}");
    // Tokens are in its memory.
    cluster.etcd.kill_and_start(0);
    works(&cluster);
    assert!(!cluster.said().contains("open-sesame"));
}
