//! What optional tests need beyond a Rust toolchain, and how Debian supplies it.
//!
//! A test says so by `#[ignore = "needs NAME"]`, where NAME is in [`NEEDS`]. Nothing is installed until a test that was
//! selected asks for it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::crates::Crate;
use crate::probe::{Probe, is_root};
use crate::process::{self, Log};

/// Something that a machine may lack.
#[derive(Debug)]
pub(crate) struct Need {
    /// The word in the test's `#[ignore = "needs NAME"]`.
    pub(crate) name: &'static str,
    /// What it is for, in the summary.
    pub(crate) purpose: &'static str,
    /// What shows that it is there; all must hold.
    probes: &'static [Probe],
    /// Debian packages that supply it; empty when no package can.
    pub(crate) packages: &'static [&'static str],
}

/// Every need that a test may name.
pub(crate) const NEEDS: &[Need] = &[
    Need {
        name: "nfs-ganesha",
        purpose: "the NFS server and client library that dafs-bench --peer nfs measures",
        probes: &[
            Probe::Program("ganesha.nfsd"),
            Probe::Library(&["ganesha/libfsalvfs.so"]),
            Probe::Library(&["libnfs.so.13", "libnfs.so.14"]),
        ],
        // Of libnfs only the library is used; its development package has the same name on every Debian.
        packages: &["nfs-ganesha", "nfs-ganesha-vfs", "libnfs-dev"],
    },
    Need {
        name: "hdf5-openmpi",
        purpose: "HDF5 over MPI-IO over dafs",
        probes: &[Probe::Program("mpicc"), Probe::Program("mpirun"), Probe::Program("h5pcc.openmpi")],
        packages: &["openmpi-bin", "libopenmpi-dev", "libhdf5-openmpi-dev"],
    },
    Need {
        name: "pnetcdf",
        purpose: "PnetCDF over MPI-IO over dafs",
        probes: &[Probe::Program("mpicc"), Probe::Program("mpirun"), Probe::Header("pnetcdf.h")],
        packages: &["openmpi-bin", "libopenmpi-dev", "libpnetcdf-dev"],
    },
    Need {
        name: "gfortran",
        purpose: "libdafs in Fortran",
        probes: &[Probe::Program("gfortran")],
        packages: &["gfortran"],
    },
    Need {
        name: "open-mpi",
        purpose: "MPI programs over dafs",
        probes: &[Probe::Program("mpicc"), Probe::Program("mpirun"), Probe::Program("ompi_info")],
        packages: &["openmpi-bin", "libopenmpi-dev"],
    },
    Need {
        name: "rdma-device",
        purpose: "RDMA on a device whose IP address is in DAFS_VERBS_ADDRESS",
        probes: &[Probe::Variable("DAFS_VERBS_ADDRESS")],
        packages: &[],
    },
    Need {
        name: "verbs-headers",
        purpose: "building the feature verbs",
        probes: &[
            Probe::Header("infiniband/verbs.h"),
            Probe::Header("rdma/rdma_cma.h"),
            Probe::Library(&["libibverbs.so"]),
            Probe::Library(&["librdmacm.so"]),
            Probe::Libclang,
            Probe::Program("pkg-config"),
        ],
        packages: &["libibverbs-dev", "librdmacm-dev", "libclang-dev", "pkg-config"],
    },
    Need {
        name: "soft-roce",
        purpose: "an RDMA device in software, which counts refusals and can be removed and made again",
        probes: &[Probe::Variable("DAFS_VERBS_ADDRESS"), Probe::File("/sys/class/infiniband/rxe0")],
        packages: &[],
    },
    Need {
        name: "user-namespace",
        purpose: "serving as a root that may not act as others",
        probes: &[Probe::UserNamespace],
        packages: &[],
    },
    Need {
        name: "etcd",
        purpose: "several servers of one file system, coordinated by etcd",
        probes: &[Probe::Program("etcd")],
        packages: &["etcd-server"],
    },
    Need {
        name: "etcd-tls",
        purpose: "servers that reach etcd over TLS, with certificates that the test makes",
        probes: &[Probe::Program("etcd"), Probe::Program("openssl")],
        packages: &["etcd-server", "openssl"],
    },
    Need {
        name: "links",
        purpose: "servers of a cluster that are each behind a link",
        probes: &[Probe::Root, Probe::Program("etcd"), Probe::Program("ip"), Probe::Link],
        packages: &["etcd-server", "iproute2"],
    },
    Need {
        name: "ceph",
        purpose: "servers of a cluster on a Ceph of one node",
        probes: &[
            Probe::Root,
            Probe::File("/dev/fuse"),
            Probe::Program("etcd"),
            Probe::Program("ceph"),
            Probe::Program("ceph-fuse"),
            Probe::Program("ceph-mds"),
            Probe::Program("ceph-mon"),
            Probe::Program("ceph-osd"),
            Probe::Program("monmaptool"),
        ],
        packages: &["etcd-server", "ceph-common", "ceph-fuse", "ceph-mds", "ceph-mon", "ceph-osd"],
    },
    Need {
        name: "ceph-links",
        purpose: "servers of a cluster on a Ceph of one node, each behind a link",
        probes: &[
            Probe::Root,
            Probe::File("/dev/fuse"),
            Probe::Program("etcd"),
            Probe::Program("ceph"),
            Probe::Program("ceph-fuse"),
            Probe::Program("ceph-mds"),
            Probe::Program("ceph-mon"),
            Probe::Program("ceph-osd"),
            Probe::Program("monmaptool"),
            Probe::Program("ip"),
            Probe::Link,
        ],
        packages: &[
            "etcd-server",
            "ceph-common",
            "ceph-fuse",
            "ceph-mds",
            "ceph-mon",
            "ceph-osd",
            "iproute2",
        ],
    },
    Need {
        name: "own-network",
        purpose: "the commands of the README, at the default addresses",
        probes: &[Probe::UserNamespace, Probe::Program("ip")],
        packages: &["iproute2"],
    },
    Need {
        name: "own-network-open-mpi",
        purpose: "MPI programs over servers that are each behind a link",
        probes: &[
            Probe::UserNamespace,
            Probe::Program("ip"),
            Probe::Program("mpicc"),
            Probe::Program("mpirun"),
            Probe::Program("ompi_info"),
        ],
        packages: &["iproute2", "openmpi-bin", "libopenmpi-dev"],
    },
    Need {
        name: "debian-root",
        purpose: "the commands of the README in a bare Debian, as root and as a user",
        probes: &[Probe::Root, Probe::Program("ip"), Probe::Program("debootstrap"), Probe::DebianRoot],
        packages: &["iproute2", "debootstrap"],
    },
    Need { name: "root", purpose: "serving as several users", probes: &[Probe::Root], packages: &[] },
    Need {
        name: "mount",
        purpose: "file systems without room",
        probes: &[Probe::Root, Probe::Tmpfs],
        packages: &[],
    },
    Need {
        name: "loop-mount",
        purpose: "a disk whose write-back fails, and what it has after a crash",
        probes: &[Probe::Root, Probe::Tmpfs, Probe::LoopMount],
        packages: &[],
    },
    Need {
        name: "loop-mount-io_uring",
        purpose: "a disk of a test's own, written by io_uring",
        probes: &[Probe::Root, Probe::Tmpfs, Probe::LoopMount, Probe::IoUring],
        packages: &[],
    },
    Need {
        name: "fuse",
        purpose: "file systems that hang",
        probes: &[Probe::Root, Probe::Tmpfs, Probe::File("/dev/fuse")],
        packages: &[],
    },
    Need {
        name: "fsx",
        purpose: "random operations on a mount, by another's program",
        probes: &[
            Probe::Root,
            Probe::File("/dev/fuse"),
            Probe::Crate(Crate { name: "fsx", version: "0.3.2" }),
        ],
        packages: &[],
    },
    Need {
        name: "pjdfstest",
        purpose: "what POSIX says of file systems, on a mount, by another's program",
        probes: &[
            Probe::Root,
            Probe::File("/dev/fuse"),
            Probe::Header("sys/acl.h"),
            Probe::Crate(Crate { name: "pjdfstest", version: "0.2.2" }),
        ],
        packages: &["libacl1-dev"],
    },
    Need {
        name: "hot-windows",
        purpose: "files in memory that are read from mappings",
        probes: &[Probe::HotWindows, Probe::File("/dev/shm")],
        packages: &[],
    },
    Need {
        name: "disk-windows",
        purpose: "files on ext4, XFS or Btrfs that are read from mappings",
        probes: &[Probe::HotWindows, Probe::PageCache, Probe::LockablePages],
        packages: &[],
    },
    Need {
        name: "dev-shm",
        purpose: "files on a file system in memory",
        probes: &[Probe::File("/dev/shm")],
        packages: &[],
    },
    Need {
        name: "io_uring",
        purpose: "storage by io_uring, which a kernel may lack or forbid",
        probes: &[Probe::IoUring],
        packages: &[],
    },
    Need {
        name: "page-cache",
        purpose: "temporary files on a disk, with and without the page cache, of which the kernel tells (Linux 6.5)",
        probes: &[Probe::PageCache],
        packages: &[],
    },
    Need {
        name: "userfaultfd",
        purpose: "registrations that are kept while the kernel watches their memory",
        probes: &[Probe::Userfaultfd],
        packages: &[],
    },
    Need {
        name: "fio",
        purpose: "the engine for fio, which is built against the headers in fio's source",
        probes: &[Probe::Program("fio"), Probe::Program("dpkg-source"), Probe::FioSource],
        packages: &["fio", "dpkg-dev"],
    },
    Need {
        name: "groff",
        purpose: "rendering the manual pages",
        probes: &[Probe::Program("groff")],
        packages: &["groff-base"],
    },
    Need {
        name: "tshark",
        purpose: "the Wireshark dissector",
        probes: &[Probe::Program("tshark")],
        packages: &["tshark"],
    },
    Need {
        name: "python3",
        purpose: "a client and a tester that were written from the specification alone",
        probes: &[Probe::Program("python3")],
        packages: &["python3"],
    },
    Need { name: "ipv6", purpose: "connections over IPv6", probes: &[Probe::Ipv6], packages: &[] },
];

/// Bound on one apt-get call.
const INSTALL_TIME_MAX: Duration = Duration::from_secs(8 * 60);

/// Remembers what is there, installing what is not at most once.
#[derive(Debug)]
pub(crate) struct Supplier {
    may_install: bool,
    log_directory: PathBuf,
    /// Per need: `Ok` when it is there, else why not.
    answers: BTreeMap<&'static str, Result<(), String>>,
}

impl Supplier {
    /// A supplier that installs only with `may_install`; apt-get's output goes to `log_directory`.
    pub(crate) fn new(may_install: bool, log_directory: &Path) -> Self {
        Self { may_install, log_directory: log_directory.to_owned(), answers: BTreeMap::new() }
    }

    /// Whether `name` is there, after an attempt to install it; else why not. May block for the time of an install.
    pub(crate) fn supply(&mut self, name: &str) -> Result<(), String> {
        let Some(need) = NEEDS.iter().find(|need| need.name == name) else {
            return Err(format!("needs {name}, which xtask/src/packages.rs does not know"));
        };
        if let Some(answer) = self.answers.get(need.name) {
            return answer.clone();
        }
        let answer = self.find_or_install(need);
        self.answers.insert(need.name, answer.clone());
        answer
    }

    /// Whether `name` is there; installs nothing.
    pub(crate) fn find(&self, name: &str) -> Result<(), String> {
        let need = NEEDS.iter().find(|need| need.name == name && need.is_present());
        need.map(|_| ()).ok_or_else(|| format!("needs {name}"))
    }

    fn find_or_install(&self, need: &Need) -> Result<(), String> {
        if need.is_present() {
            return Ok(());
        }
        if need.packages.is_empty() {
            return Err(format!("needs {}", need.name));
        }
        let wanted = need.packages.join(" ");
        if !self.may_install {
            return Err(format!("needs {wanted} (--no-install)"));
        }
        let Some(prefix) = privilege() else {
            return Err(format!("needs {wanted}: not root, and sudo asks a password or is missing"));
        };
        println!("    installing {wanted}: {}", need.purpose);
        self.install(prefix, need).map_err(|why| format!("needs {wanted}: {why}"))?;
        if need.is_present() { Ok(()) } else { Err(format!("needs {wanted}: installed, yet not found")) }
    }

    /// Installs from the lists the machine has; when that fails, fetches new lists and tries once more.
    fn install(&self, prefix: &[&str], need: &Need) -> Result<(), String> {
        let install: Vec<&str> =
            ["install", "--yes", "--no-install-recommends"].iter().chain(need.packages).copied().collect();
        if self.apt_get(prefix, &install).is_ok() {
            return Ok(());
        }
        self.apt_get(prefix, &["update"])?;
        self.apt_get(prefix, &install)
    }

    fn apt_get(&self, prefix: &[&str], arguments: &[&str]) -> Result<(), String> {
        let name = format!("apt-get {}", arguments[0]);
        let log = Log::new(&self.log_directory, &name.replace(' ', "-"));
        let outcome = process::run(apt_get_command(prefix, arguments), &name, &log, INSTALL_TIME_MAX)
            .map_err(|error| format!("{error:#}"))?;
        if outcome.end.is_success() {
            return Ok(());
        }
        let said = log.stderr_text();
        let cause = said.lines().rfind(|line| line.starts_with("E:")).unwrap_or_default().trim();
        Err(format!("{name} {} {cause}", outcome.end.describe()).trim_end().to_owned())
    }
}

impl Need {
    fn is_present(&self) -> bool {
        self.probes.iter().all(Probe::holds)
    }
}

/// Whether only root has it.
pub(crate) fn needs_root(need: &str) -> bool {
    let probes = NEEDS.iter().filter(|known| known.name == need).flat_map(|known| known.probes);
    probes.into_iter().any(|probe| matches!(probe, Probe::Root))
}

/// Whether a namespace of users is made for it.
pub(crate) fn needs_user_namespace(need: &str) -> bool {
    let probes = NEEDS.iter().filter(|known| known.name == need).flat_map(|known| known.probes);
    probes.into_iter().any(|probe| matches!(probe, Probe::UserNamespace))
}

/// The name that an ignored test asks for: `needs NAME`, perhaps with more words after it.
pub(crate) fn need_named_in(reason: &str) -> Option<&str> {
    let rest = reason.strip_prefix("needs ")?;
    rest.split([' ', ',', ':', ';']).find(|word| !word.is_empty())
}

/// SYSTEMD_OFFLINE keeps a package's scripts from starting a service on the developer's machine: tests start what they
/// need themselves, on ports of their own.
fn apt_get_command(prefix: &[&str], arguments: &[&str]) -> Command {
    let words = prefix
        .iter()
        .copied()
        .chain(["env", "DEBIAN_FRONTEND=noninteractive", "SYSTEMD_OFFLINE=1", "LC_ALL=C"])
        .chain(["apt-get", "-qq", "-o", "DPkg::Lock::Timeout=60", "-o", "Acquire::Retries=2"])
        .chain(arguments.iter().copied())
        .collect::<Vec<_>>();
    let mut command = Command::new(words[0]);
    command.args(&words[1..]);
    command
}

/// The words that make a command privileged: none as root, `sudo -n` where that works, `None` otherwise.
fn privilege() -> Option<&'static [&'static str]> {
    if is_root() {
        return Some(&[]);
    }
    let quiet = |command: &mut Command| {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status()
    };
    let works = quiet(Command::new("sudo").args(["-n", "true"])).is_ok_and(|status| status.success());
    works.then_some(&["sudo", "-n"])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn need_is_read_from_the_reason() {
        assert_eq!(need_named_in("needs nfs-ganesha"), Some("nfs-ganesha"));
        assert_eq!(need_named_in("needs root: it changes owners"), Some("root"));
        assert_eq!(need_named_in("slow"), None);
        assert_eq!(need_named_in("needs "), None);
    }

    #[test]
    fn supply_unknown_need_names_it() {
        let mut supplier = Supplier::new(true, Path::new("/nonexistent"));
        let why = supplier.supply("a-time-machine").unwrap_err();
        assert!(why.contains("a-time-machine"), "{why}");
    }

    #[test]
    fn supply_missing_without_permission_names_the_packages() {
        let need = Need {
            name: "nothing",
            purpose: "",
            probes: &[Probe::Program("no-such-program-here")],
            packages: &["a", "b"],
        };
        let supplier = Supplier::new(false, Path::new("/nonexistent"));
        assert_eq!(supplier.find_or_install(&need), Err("needs a b (--no-install)".to_owned()));
    }

    #[test]
    fn apt_get_asks_nothing() {
        let command = apt_get_command(&["sudo", "-n"], &["update"]);
        let words: Vec<_> = command.get_args().map(|word| word.to_string_lossy().into_owned()).collect();
        assert_eq!(command.get_program(), "sudo");
        assert!(words.contains(&"DEBIAN_FRONTEND=noninteractive".to_owned()));
        assert_eq!(words.last().map(String::as_str), Some("update"));
    }
}
