//! How the store of a cluster is reached: its address, certificates, and a user.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use dafs_proto::small_file::SmallFile;

use super::ConfigError;
use crate::cli::StoreSettings;
use crate::cluster::{ClusterAddress, StoreAccess, StoreTls, check_authorities, check_client, key_in};

/// Bytes of such a file at most.
const FILE_SIZE_MAX: u64 = 1 << 20;

const CA: &str = "--etcd-ca-file";
const CERTIFICATE: &str = "--etcd-certificate-file";
const KEY: &str = "--etcd-key-file";
const USER: &str = "--etcd-user";
const PASSWORD: &str = "--etcd-password-file";

/// The store and cluster of this address, and how they are reached by a process of this user. Reads files: blocking.
pub fn store_of(
    cluster: &str,
    settings: &StoreSettings,
    server_uid: u32,
) -> Result<(ClusterAddress, StoreAccess), ConfigError> {
    let example = "write it like etcd://host1,host2,host3/name";
    let address: ClusterAddress =
        cluster.parse().map_err(|problem: &str| ConfigError::new("--cluster", problem, example))?;
    let tls = match address.is_secure {
        true => Some(tls_of(settings, server_uid)?),
        false => {
            let files = [
                (CA, &settings.etcd_ca_file),
                (CERTIFICATE, &settings.etcd_certificate_file),
                (KEY, &settings.etcd_key_file),
            ];
            if let Some((flag, _)) = files.iter().find(|(_, file)| file.is_some()) {
                let remedy = "write etcds:// in --cluster, or leave it out";
                return Err(ConfigError::new(flag, "it is for etcd over TLS", remedy));
            }
            None
        }
    };
    let user = match (&settings.etcd_user, &settings.etcd_password_file) {
        (Some(name), Some(file)) => Some((name.clone(), password_in(file, server_uid)?)),
        (Some(_), None) => return Err(missing(USER, PASSWORD, "its password is missing")),
        (None, Some(_)) => return Err(missing(PASSWORD, USER, "nobody says whose password it is")),
        (None, None) => None,
    };
    Ok((address, StoreAccess { tls, user }))
}

fn missing(flag: &str, other: &str, problem: &str) -> ConfigError {
    ConfigError::new(flag, problem, format!("give {other} too"))
}

fn tls_of(settings: &StoreSettings, server_uid: u32) -> Result<StoreTls, ConfigError> {
    let Some(file) = &settings.etcd_ca_file else {
        let problem = "nobody says which authority has signed the certificates of etcd";
        return Err(missing("--cluster", CA, problem));
    };
    let authorities = read(CA, file, None)?;
    let client = match (&settings.etcd_certificate_file, &settings.etcd_key_file) {
        (Some(certificate), Some(key)) => {
            let read_key = read(KEY, key, Some(server_uid))?;
            Some(((read(CERTIFICATE, certificate, None)?, certificate), (read_key, key)))
        }
        (Some(_), None) => return Err(missing(CERTIFICATE, KEY, "its private key is missing")),
        (None, Some(_)) => return Err(missing(KEY, CERTIFICATE, "its certificate is missing")),
        (None, None) => None,
    };
    check_authorities(&authorities).map_err(|problem| unfit(CA, file, &problem))?;
    if let Some(((certificate, certificate_file), (key, key_file))) = &client {
        key_in(key).map_err(|problem| unfit(KEY, key_file, &problem))?;
        check_client(certificate, key).map_err(|problem| unfit(CERTIFICATE, certificate_file, &problem))?;
    }
    let client = client.map(|((certificate, _), (key, _))| (certificate, key));
    Ok(StoreTls { authorities, client })
}

fn unfit(flag: &str, file: &Path, problem: &str) -> ConfigError {
    ConfigError::new(flag, format!("{}: {problem}", file.display()), "give the path of another file")
}

/// The text of a file; of a secret one, which only this user, or root, may be able to read.
fn read(flag: &str, path: &Path, secret_of: Option<u32>) -> Result<String, ConfigError> {
    let shown = path.display();
    let failed = |error: &dyn std::fmt::Display| {
        ConfigError::new(flag, format!("{shown}: {error}"), "correct the path, or the file")
    };
    let file = SmallFile::open(path).map_err(|error| failed(&error))?;
    if let Some(server_uid) = secret_of {
        let (mode, owner) = (file.metadata().mode(), file.metadata().uid());
        if mode & 0o077 != 0 {
            let problem = format!("{shown}: other users may read or change it (mode {:03o})", mode & 0o777);
            return Err(ConfigError::new(flag, problem, format!("run `chmod 600 {shown}`")));
        }
        if owner != server_uid && owner != 0 {
            let problem = format!("{shown}: user {owner} owns it, and could read and change it");
            return Err(ConfigError::new(flag, problem, format!("run `chown {server_uid} {shown}`")));
        }
    }
    file.read(FILE_SIZE_MAX).map_err(|error| failed(&error))
}

fn password_in(path: &Path, server_uid: u32) -> Result<String, ConfigError> {
    let text = read(PASSWORD, path, Some(server_uid))?;
    let password = text.strip_suffix('\n').unwrap_or(&text);
    match password.is_empty() || password.contains(char::is_control) {
        true => Err(unfit(PASSWORD, path, "it has not one line with a password")),
        false => Ok(password.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        store: StoreSettings,
    }

    // [CLUS-40] [CLUS-41]
    #[test]
    fn what_proves_a_server_to_its_store_is_checked() {
        let directory = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str, mode: u32| {
            let path = directory.path().join(name);
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            path.to_str().unwrap().to_owned()
        };
        let own = rustix::process::geteuid().as_raw();
        let with = |cluster: &str, more: &[&str]| {
            let line = Line::parse_from([&["server"], more].concat());
            store_of(cluster, &line.store, own).map(|(_, access)| access).map_err(|error| error.to_string())
        };
        let (plain, secure) = ("etcd://store/main", "etcds://store/main");
        let (text, open, bad) =
            (file("text", "text", 0o600), file("open", "word", 0o640), file("bad", "a\nb\n", 0o600));
        let pem = file("pem", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", 0o644);
        let password = file("password", "word\n", 0o600);
        for (cluster, flags, says) in [
            (secure, &[][..], "give --etcd-ca-file too"),
            (plain, &["--etcd-ca-file", &pem], "it is for etcd over TLS"),
            (secure, &["--etcd-ca-file", "/nowhere/ca"], "/nowhere/ca: No such file"),
            (secure, &["--etcd-ca-file", &text], "text: it has no certificate in PEM"),
            (secure, &["--etcd-ca-file", &pem], "pem: a certificate cannot be used"),
            (secure, &["--etcd-ca-file", &pem, "--etcd-key-file", &text], "its certificate is missing"),
            (secure, &["--etcd-ca-file", &pem, "--etcd-certificate-file", &pem], "give --etcd-key-file too"),
            (
                secure,
                &["--etcd-ca-file", &pem, "--etcd-certificate-file", &pem, "--etcd-key-file", &open],
                "other users may read or change it (mode 640); run `chmod 600",
            ),
            (plain, &["--etcd-user", "dafs"], "give --etcd-password-file too"),
            (plain, &["--etcd-password-file", &password], "give --etcd-user too"),
            (plain, &["--etcd-user", "dafs", "--etcd-password-file", &open], "(mode 640)"),
            (plain, &["--etcd-user", "dafs", "--etcd-password-file", &bad], "not one line with a password"),
        ] {
            let refused = with(cluster, flags).unwrap_err();
            assert!(refused.contains(says), "{flags:?}: {refused}");
        }
        let access = with(plain, &["--etcd-user", "dafs", "--etcd-password-file", &password]).unwrap();
        assert_eq!(access.user, Some(("dafs".to_owned(), "word".to_owned())));
        assert!(!format!("{access:?}").contains("word"), "it is not shown");
    }
}
