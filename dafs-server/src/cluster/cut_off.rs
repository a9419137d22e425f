//! Makes sure that a server can write no more: its process has ended on this host, Ceph takes nothing from its client any more, the fence
//! command says so, or an operator.

use std::path::Path;
use std::time::Duration;

use dafs_proto::transport::util::lock;

use super::core::{Core, SharedExport};
use super::host::Fence;
use super::records::{CephClient, Member, ServerNumber};

/// Between two attempts.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);
/// Between two notes that a server must be cut off by hand.
const REMINDER_INTERVAL: Duration = Duration::from_secs(60);
/// Ends a client's session and has all storage daemons refuse it. Of a client that is gone already it says the same. The settings may be
/// those of another Ceph, where another client has that number.
const EVICT: &str = r#"test "$(ceph --connect-timeout 10 fsid)" = "$DAFS_FENCE_CEPH_CLUSTER" &&
ceph --connect-timeout 10 tell 'mds.*' client evict id="$DAFS_FENCE_CEPH_CLIENT" 2>/dev/null"#;

/// The client by which this directory is mounted; `None` where it is not on CephFS. Blocks.
fn ceph_client(directory: &Path) -> Option<CephClient> {
    let attribute = |name: &str| {
        let mut value = [0; 64];
        let len = rustix::fs::getxattr(directory, name, &mut value).ok()?;
        String::from_utf8(value[..len].to_vec()).ok()
    };
    let client = attribute("ceph.client_id")?;
    let client = client.strip_prefix("client")?.trim_start_matches('.').parse().ok()?;
    Some(CephClient { cluster: attribute("ceph.cluster_fsid")?, client })
}

/// The clients by which all of these are mounted; none where one of them is elsewhere than on CephFS. Blocks.
pub(super) fn ceph_clients(exports: &[SharedExport]) -> Vec<CephClient> {
    let clients: Option<Vec<_>> = exports.iter().map(|export| ceph_client(&export.path)).collect();
    let mut clients = clients.unwrap_or_default();
    clients.dedup();
    clients
}

/// Blocks until a server can write no more. `false` where this server is to give up, as it ends or its own term is over.
pub(super) fn cut_off(core: &Core, server: ServerNumber, member: &Member) -> bool {
    let mut reminded: Option<Duration> = None;
    loop {
        if core.is_leaving() || !core.is_current() {
            return false;
        }
        if lock(&core.view).is_cut_off(server) {
            return true;
        }
        let has_ended = core.host.has_ended(&member.process());
        match (cut_off_once(core, server, member, has_ended), has_ended) {
            (Some(Ok(())), _) | (None, true) => return true,
            (Some(Err(problem)), true) => {
                let what = "its process has ended, and Ceph waits for its client for some minutes";
                tracing::warn!(server, name = member.name, problem, "{what}");
                return true;
            }
            (Some(Err(problem)), false) => {
                tracing::error!(server, name = member.name, problem, "it cannot be cut off yet");
            }
            (None, false) if reminded.is_none_or(|at| core.host.now() >= at + REMINDER_INTERVAL) => {
                reminded = Some(core.host.now());
                tracing::error!(
                    server,
                    name = member.name,
                    "there is no --fence-command: make sure that it can write no more, then run: \
                     dafs-server cut-off {} {server}",
                    core.config.address
                );
            }
            (None, false) => {}
        }
        core.rest(RETRY_INTERVAL);
    }
}

/// `None` where there is nothing that could be done. Where a process has ended, its clients of Ceph may live on, and keep others waiting.
fn cut_off_once(
    core: &Core,
    server: ServerNumber,
    member: &Member,
    has_ended: bool,
) -> Option<Result<(), String>> {
    let evicts = !member.ceph.is_empty() && !lock(&core.view).is_shared(server, &member.ceph);
    match &core.config.fence_command {
        Some(command) if !has_ended => Some(run(core, command, server, member, member.ceph.first())),
        _ if evicts => {
            let evicted = member.ceph.iter().try_for_each(|client| {
                run(core, EVICT, server, member, Some(client))?;
                tracing::warn!(
                    server,
                    name = member.name,
                    client = client.client,
                    "evicted its client from Ceph"
                );
                Ok(())
            });
            Some(evicted.map_err(|problem: String| format!("ceph client evict: {problem}")))
        }
        _ => None,
    }
}

fn run(
    core: &Core,
    command: &str,
    server: ServerNumber,
    member: &Member,
    ceph: Option<&CephClient>,
) -> Result<(), String> {
    let mut variables = vec![
        ("DAFS_FENCE_SERVER", server.to_string()),
        ("DAFS_FENCE_NAME", member.name.clone()),
        ("DAFS_FENCE_PID", member.pid.to_string()),
        ("DAFS_FENCE_ADDRESSES", member.addresses.join(" ")),
        ("DAFS_FENCE_DETAIL", member.detail.clone()),
    ];
    if let Some(CephClient { cluster, client }) = ceph {
        variables.push(("DAFS_FENCE_CEPH_CLUSTER", cluster.clone()));
        variables.push(("DAFS_FENCE_CEPH_CLIENT", client.to_string()));
    }
    core.host.fence(&Fence { command, variables }, &|| core.is_leaving())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::sync::atomic::Ordering;
    use std::sync::{Arc, Mutex};

    use super::super::coordination::Entry;
    use super::super::host::{EventCount, Host, Join, OwnHost, Process};
    use super::super::memory::MemoryStore;
    use super::super::records::{Keys, encode};
    use super::super::settings::ClusterConfig;
    use super::*;

    /// Notes what it runs; all of that fails, or nothing.
    struct Noting {
        own: OwnHost,
        has_ended: bool,
        fails: bool,
        ran: Mutex<Vec<String>>,
    }

    impl Host for Noting {
        fn now(&self) -> Duration {
            self.own.now()
        }
        fn spawn(&self, name: &'static str, body: Box<dyn FnOnce() + Send>) -> std::io::Result<Join> {
            self.own.spawn(name, body)
        }
        fn event_count(&self) -> Arc<dyn EventCount> {
            self.own.event_count()
        }
        fn fill_random(&self, bytes: &mut [u8]) -> std::io::Result<()> {
            self.own.fill_random(bytes)
        }
        fn process(&self) -> Process {
            self.own.process()
        }
        fn has_ended(&self, _: &Process) -> bool {
            self.has_ended
        }
        fn fence(&self, fence: &Fence<'_>, _: &dyn Fn() -> bool) -> Result<(), String> {
            let command = if fence.command == EVICT { "evict" } else { fence.command };
            let ceph = |name: &&(&str, String)| name.0.starts_with("DAFS_FENCE_CEPH_");
            let values = fence.variables.iter().filter(ceph).map(|(_, value)| value.as_str());
            lock(&self.ran).push([&[command], &values.collect::<Vec<_>>()[..]].concat().join(" "));
            if self.fails { Err("refused".to_owned()) } else { Ok(()) }
        }
    }

    /// What is run so that server 1 can write no more, and whether that is so. Server 2 serves, by this client of Ceph.
    fn tried(
        has_ended: bool,
        fails: bool,
        command: Option<&str>,
        others: u64,
    ) -> (Vec<String>, Option<bool>) {
        let host = Arc::new(Noting { own: OwnHost::new(), has_ended, fails, ran: Mutex::default() });
        let config = ClusterConfig {
            address: "etcd://nowhere/test".parse().unwrap(),
            access: Default::default(),
            term_ms: 2000,
            server_name: String::new(),
            addresses: Vec::new(),
            fence_command: command.map(str::to_owned),
            fence_detail: String::new(),
            lease_ms: 30_000,
            buckets: 1,
        };
        let own: Arc<dyn Host> = host.clone();
        let store = MemoryStore::new(|| Duration::ZERO);
        let core = Core::new((Arc::new(store), own), (1, 3), &config, Vec::new());
        core.until.store(u64::MAX, Ordering::Release);
        let with = |client| Member {
            ceph: vec![CephClient { cluster: "id".to_owned(), client }],
            ..Member::default()
        };
        let keys = Keys::of("test");
        let entry = |key, value| Entry { key, value, revision: 1 };
        let seen = [
            entry(keys.member(1), encode(&with(7))),
            entry(keys.member(2), encode(&with(others))),
            entry(keys.live_server(2), Vec::new()),
        ];
        lock(&core.view).update(&keys, &seen, Duration::ZERO);
        // It would ask an operator, or try again, for ever.
        let known = has_ended || (!fails && (command.is_some() || others != 7));
        let is_cut_off = match known {
            true => Some(cut_off(&core, 1, &with(7))),
            false => cut_off_once(&core, 1, &with(7), has_ended).map(|tried| tried.is_ok()),
        };
        (std::mem::take(&mut *lock(&host.ran)), is_cut_off)
    }

    // [CLUS-4] [CLUS-5] [CLUS-30]
    #[test]
    fn client_of_ceph_is_evicted_unless_another_server_has_it() {
        let ran = |ran: &[&str]| ran.iter().map(|ran| (*ran).to_owned()).collect::<Vec<_>>();
        for (has_ended, fails, command, others, expected) in [
            (false, false, None, 8, (ran(&["evict id 7"]), Some(true))),
            (false, true, None, 8, (ran(&["evict id 7"]), Some(false))),
            (false, false, None, 7, (ran(&[]), None)),
            // Its files wait for a client that has died with it.
            (true, false, None, 8, (ran(&["evict id 7"]), Some(true))),
            (true, true, None, 8, (ran(&["evict id 7"]), Some(true))),
            (true, false, None, 7, (ran(&[]), Some(true))),
            (false, false, Some("off"), 8, (ran(&["off id 7"]), Some(true))),
            (false, false, Some("off"), 7, (ran(&["off id 7"]), Some(true))),
            (true, false, Some("off"), 8, (ran(&["evict id 7"]), Some(true))),
        ] {
            assert_eq!(
                tried(has_ended, fails, command, others),
                expected,
                "{has_ended} {fails} {command:?} {others}"
            );
        }
    }
}
