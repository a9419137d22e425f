//! Makes sure that a server can write no more: its process has ended on this host, Ceph takes nothing from its client any more, the fence
//! command says so, or an operator.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use dafs_proto::transport::util::lock;

use super::core::{Core, SharedExport};
use super::host::Fence;
use super::records::{CephClient, Member, ServerNumber};

/// Between two attempts.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);
/// Between two notes that a server must be cut off by hand.
const REMINDER_INTERVAL: Duration = Duration::from_secs(60);
/// Ends a client's session and has all storage daemons refuse it. Of a client that is gone already it says the same.
const EVICT: &str =
    r#"ceph --connect-timeout 10 tell 'mds.*' client evict id="$DAFS_FENCE_CEPH_CLIENT" 2>/dev/null"#;
/// Whether the settings are of that Ceph: in another one, another client has that number.
const IS_SAME: &str = r#"test "$(ceph --connect-timeout 10 fsid)" = "$DAFS_FENCE_CEPH_CLUSTER""#;
/// Whether the key may speak to clients. Those of a large Ceph are many.
const MAY_EVICT: &str = "ceph --connect-timeout 10 tell 'mds.*' client ls id=0 2>/dev/null";

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

/// Tries at the start, on a thread of its own, what is needed when a server is lost: that takes time, and tells what an operator got wrong.
pub(super) fn rehearse(core: &Arc<Core>, member: &Member) {
    let Some(client) = member.ceph.first().cloned() else { return };
    let (own, member) = (Arc::clone(core), member.clone());
    let work = move || {
        if let Err(problem) = try_ceph(&own, &member, &client) {
            let what = "this server could not evict the clients of lost servers from Ceph";
            tracing::warn!(problem, "{what}: set CEPH_CONF, and give it a key that may");
        }
    };
    if let Err(error) = core.host.spawn("dafs-ceph", Box::new(work)) {
        tracing::warn!(%error, "cannot start a thread to speak to Ceph");
    }
}

/// Whether this server could evict clients of the Ceph that this one, its own, is of. Blocks.
fn try_ceph(core: &Core, own: &Member, client: &CephClient) -> Result<(), String> {
    let tried = |command| run(core, command, core.number, own, Some(client));
    tried(IS_SAME).map_err(|problem| format!("ceph fsid does not say {}: {problem}", client.cluster))?;
    // It is set once.
    let _ = core.ceph.set(client.cluster.clone());
    tried(MAY_EVICT).map_err(|problem| format!("ceph tell mds.* client ls: {problem}"))
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
                if core.ceph.get() != Some(&client.cluster) {
                    run(core, IS_SAME, server, member, Some(client))?;
                }
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
    use super::super::records::{Keys, encode};
    use super::super::settings::ClusterConfig;
    use super::super::tests::{config, memory_store};
    use super::*;

    /// Notes what it runs.
    struct Noting {
        own: OwnHost,
        has_ended: bool,
        fails: Vec<String>,
        ran: Mutex<Vec<String>>,
    }

    impl Noting {
        fn new(has_ended: bool, fails: &[&str]) -> Self {
            let fails = fails.iter().map(|command| (*command).to_owned()).collect();
            Self { own: OwnHost::new(), has_ended, fails, ran: Mutex::default() }
        }
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
            let command = match fence.command {
                EVICT => "evict",
                IS_SAME => "same",
                MAY_EVICT => "list",
                other => other,
            };
            let ceph = |name: &&(&str, String)| name.0.starts_with("DAFS_FENCE_CEPH_");
            let values = fence.variables.iter().filter(ceph).map(|(_, value)| value.as_str());
            lock(&self.ran).push([&[command], &values.collect::<Vec<_>>()[..]].concat().join(" "));
            if self.fails.iter().any(|fails| fails == command) { Err("refused".to_owned()) } else { Ok(()) }
        }
    }

    fn core_on(host: &Arc<Noting>, command: Option<&str>) -> Core {
        let config = ClusterConfig { fence_command: command.map(str::to_owned), ..config() };
        let store = memory_store();
        let core = Core::new((Arc::new(store), Arc::clone(host) as _), (1, 3), &config, Vec::new());
        core.until.store(u64::MAX, Ordering::Release);
        core
    }

    fn client(client: u64) -> CephClient {
        CephClient { cluster: "id".to_owned(), client }
    }

    // [CLUS-43]
    #[test]
    fn server_that_could_not_evict_knows_it_at_its_start() {
        for (fails, is_known) in [(vec!["same"], false), (vec!["list"], true), (vec![], true)] {
            let host = Arc::new(Noting::new(false, &fails));
            let core = core_on(&host, None);
            assert_eq!(try_ceph(&core, &Member::default(), &client(5)).is_ok(), fails.is_empty());
            assert_eq!(core.ceph.get().is_some(), is_known);
        }
    }

    /// What is run so that server 1 can write no more, and whether that is so. Server 2 serves, by this client of Ceph.
    fn tried(
        has_ended: bool,
        fails: bool,
        command: Option<&str>,
        others: u64,
        is_known: bool,
    ) -> (Vec<String>, Option<bool>) {
        let fails: &[&str] = if fails { &["evict", "off"] } else { &[] };
        let host = Arc::new(Noting::new(has_ended, fails));
        let core = core_on(&host, command);
        if is_known {
            core.ceph.set("id".to_owned()).unwrap();
        }
        let with = |number| Member { ceph: vec![client(number)], ..Member::default() };
        let keys = Keys::of("test");
        let entry = |key, value| Entry { key, value, revision: 1 };
        let seen = [
            entry(keys.member(1), encode(&with(7))),
            entry(keys.member(2), encode(&with(others))),
            entry(keys.live_server(2), Vec::new()),
        ];
        lock(&core.view).update(&keys, &seen, Duration::ZERO);
        // It would ask an operator, or try again, for ever.
        let known = has_ended || (fails.is_empty() && (command.is_some() || others != 7));
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
            (false, false, None, 8, (ran(&["same id 7", "evict id 7"]), Some(true))),
            (false, true, None, 8, (ran(&["same id 7", "evict id 7"]), Some(false))),
            (false, false, None, 7, (ran(&[]), None)),
            // Its files wait for a client that has died with it.
            (true, false, None, 8, (ran(&["same id 7", "evict id 7"]), Some(true))),
            (true, true, None, 8, (ran(&["same id 7", "evict id 7"]), Some(true))),
            (true, false, None, 7, (ran(&[]), Some(true))),
            (false, false, Some("off"), 8, (ran(&["off id 7"]), Some(true))),
            (false, false, Some("off"), 7, (ran(&["off id 7"]), Some(true))),
            (true, false, Some("off"), 8, (ran(&["same id 7", "evict id 7"]), Some(true))),
        ] {
            assert_eq!(
                tried(has_ended, fails, command, others, false),
                expected,
                "{has_ended} {fails} {command:?} {others}"
            );
        }
        // The settings were looked at before.
        assert_eq!(tried(false, false, None, 8, true), (ran(&["evict id 7"]), Some(true)));
    }
}
