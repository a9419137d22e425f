//! A Ceph of one node, with a file system that is mounted several times, as on several hosts.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::links::Host;
use crate::port::Port;

/// Bytes that its disk may have; the file is sparse.
const DISK_SIZE: u64 = 4 << 30;

/// All of it is killed when this is dropped.
pub struct Ceph {
    mounts: Vec<Mount>,
    daemons: Vec<Child>,
    directory: tempfile::TempDir,
    port: Port,
    /// Its daemons are reached at this end of its link, which is never cut.
    link: Option<Host>,
}

/// A client of its own.
struct Mount {
    child: Child,
    path: PathBuf,
    place: Place,
}

/// How and where something is mounted.
#[derive(Clone)]
struct Place {
    more: Vec<String>,
    /// If that is not this one.
    host: Option<Host>,
}

impl Ceph {
    /// With a mount on each of these hosts, which caches no pages; `None`: on this host. Other hosts reach the daemons at a link.
    pub fn start(hosts: &[Option<Host>], link: Option<Host>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let port = Port::new();
        for name in ["mon", "osd", "mds", "run", "log"] {
            std::fs::create_dir(directory.path().join(name)).unwrap();
        }
        let cluster = uuid();
        let mut ceph = Self { mounts: Vec::new(), daemons: Vec::new(), directory, port, link };
        let settings = settings(ceph.directory.path(), ceph.monitor(), &cluster);
        std::fs::write(ceph.settings(), settings).unwrap();
        ceph.serve(&cluster);
        for (number, host) in hosts.iter().enumerate() {
            let more = vec!["--fuse_disable_pagecache=true".to_owned()];
            ceph.mount_at(&format!("mount-{number}"), Place { more, host: host.clone() });
        }
        ceph
    }

    fn monitor(&self) -> SocketAddr {
        let own = IpAddr::from(Ipv4Addr::LOCALHOST);
        (self.link.as_ref().map_or(own, |link| link.gateway), self.port.address().port()).into()
    }

    fn serve(&mut self, cluster: &str) {
        let map = self.path("map");
        let map = map.to_str().unwrap();
        let monitor = format!("[v2:{}]", self.monitor());
        self.run("monmaptool", &["--create", "--addv", "a", &monitor, "--fsid", cluster, map]);
        self.run("ceph-mon", &["--mkfs", "-i", "a", "--monmap", map]);
        self.daemon("ceph-mon", &["-f", "-i", "a"]);
        let disk = uuid();
        self.run("ceph", &["osd", "new", &disk]);
        self.run("ceph-osd", &["-i", "0", "--mkfs", "--osd-uuid", &disk]);
        self.daemon("ceph-osd", &["-f", "-i", "0"]);
        for pool in ["meta", "data"] {
            self.run("ceph", &["osd", "pool", "create", pool, "8"]);
        }
        self.run("ceph", &["fs", "new", "files", "meta", "data"]);
        self.daemon("ceph-mds", &["-f", "-i", "a"]);
        while !self.run("ceph", &["mds", "stat"]).contains("up:active") {}
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Its settings, for programs that are to find it.
    pub fn settings(&self) -> PathBuf {
        self.path("conf")
    }

    /// Where it is mounted.
    pub fn mounts(&self) -> Vec<PathBuf> {
        self.mounts.iter().map(|mount| mount.path.clone()).collect()
    }

    /// Mounts it once more, on this host.
    pub fn mount(&mut self, name: &str, more: &[&str]) {
        let more = more.iter().map(|flag| (*flag).to_owned()).collect();
        self.mount_at(name, Place { more, host: None });
    }

    fn mount_at(&mut self, name: &str, place: Place) {
        let path = self.path(name);
        std::fs::create_dir(&path).unwrap();
        let child = self.launch_mount(&path, &place);
        self.mounts.push(Mount { child, path, place });
    }

    /// Its client is killed, and what it had not said is lost.
    pub fn kill_mount(&mut self, number: usize) {
        let mount = &mut self.mounts[number];
        mount.child.kill().unwrap();
        mount.child.wait().unwrap();
    }

    /// Its client ends, so that nobody waits for it.
    pub fn unmount(&mut self, number: usize) {
        unmount(&self.mounts[number].path);
        self.mounts[number].child.wait().unwrap();
    }

    /// Mounts it where it was mounted, by another client.
    pub fn mount_again(&mut self, number: usize) {
        unmount(&self.mounts[number].path);
        // It may have ended by itself.
        let _ = self.mounts[number].child.kill();
        self.mounts[number].child.wait().unwrap();
        let (path, place) = (self.mounts[number].path.clone(), self.mounts[number].place.clone());
        self.mounts[number].child = self.launch_mount(&path, &place);
    }

    fn launch_mount(&self, path: &Path, place: &Place) -> Child {
        let device = |path: &Path| std::os::linux::fs::MetadataExt::st_dev(&std::fs::metadata(path).unwrap());
        let own = device(self.directory.path());
        let program = "ceph-fuse";
        let command = place.host.as_ref().map_or_else(|| Command::new(program), |host| host.command(program));
        let mut child = self.set_up(command).arg("-f").args(&place.more).arg(path).spawn().unwrap();
        while device(path) == own {
            assert!(child.try_wait().unwrap().is_none(), "ceph-fuse: {}", self.said());
        }
        child
    }

    fn command(&self, program: &str) -> Command {
        self.set_up(Command::new(program))
    }

    fn set_up(&self, mut command: Command) -> Command {
        let log = std::fs::File::options().create(true).append(true).open(self.path("said")).unwrap();
        command.env("CEPH_CONF", self.settings()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        command
    }

    fn daemon(&mut self, program: &str, arguments: &[&str]) {
        let child = self.command(program).args(arguments).spawn().unwrap();
        self.daemons.push(child);
    }

    fn run(&self, program: &str, arguments: &[&str]) -> String {
        let ended = self.command(program).args(arguments).stdout(Stdio::piped()).output().unwrap();
        assert!(ended.status.success(), "{program} {arguments:?}: {}", self.said());
        String::from_utf8(ended.stdout).unwrap()
    }

    fn said(&self) -> String {
        std::fs::read_to_string(self.path("said")).unwrap_or_default()
    }
}

impl Drop for Ceph {
    fn drop(&mut self) {
        for mount in &mut self.mounts {
            unmount(&mount.path);
            // It may have ended by itself.
            let _ = mount.child.kill();
            let _ = mount.child.wait();
        }
        for daemon in &mut self.daemons {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
    }
}

fn unmount(path: &Path) {
    // Where it is not mounted there is nothing to do.
    let _ = Command::new("umount").arg("-l").arg(path).stderr(Stdio::null()).status();
}

fn uuid() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/uuid").unwrap().trim().to_owned()
}

/// One of each daemon, one copy of all data, and no keys.
fn settings(directory: &Path, monitor: SocketAddr, cluster: &str) -> String {
    let directory = directory.display();
    let address = monitor.ip();
    format!(
        "[global]
fsid = {cluster}
mon_host = v2:{monitor}
mon_initial_members = a
public_addr = {address}
cluster_addr = {address}
auth_cluster_required = none
auth_service_required = none
auth_client_required = none
keyring = /dev/null
run_dir = {directory}/run
admin_socket = {directory}/run/$name.$pid.asok
pid_file = {directory}/run/$name.$pid.pid
log_file = {directory}/log/$name.log
mon_cluster_log_file = {directory}/log/cluster.log
crash_dir = {directory}/log
setuser_match_path =
ms_bind_ipv6 = false
ms_async_op_threads = 1
osd_pool_default_size = 1
osd_pool_default_min_size = 1
mon_allow_pool_size_one = true
mon_warn_on_pool_no_redundancy = false
osd_crush_chooseleaf_type = 0
osd_pool_default_pg_autoscale_mode = off
[mon]
mon_data = {directory}/mon
mon_data_avail_warn = 2
mon_data_avail_crit = 1
auth_allow_insecure_global_id_reclaim = false
[osd]
osd_data = {directory}/osd
osd_journal = {directory}/osd/journal
osd_objectstore = bluestore
bluestore_block_size = {DISK_SIZE}
bluestore_block_create = true
bluestore_block_db_create = false
bluestore_cache_autotune = false
bluestore_cache_size = 67108864
osd_memory_target = 939524096
osd_op_num_shards = 2
osd_op_num_threads_per_shard = 1
osd_class_update_on_start = false
[mds]
mds_data = {directory}/mds
mds_cache_memory_limit = 67108864
[client]
client_die_on_failed_dentry_invalidate = false
"
    )
}
