//! An export that `dafs mount` has mounted: dafs for programs that do not know it.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use tempfile::TempDir;

use crate::cli::{Mount, Transport};
use crate::machine::Pins;
use crate::peer::mount::{Host, Mounted};
use crate::progress::POLL_INTERVAL;
use crate::subject::server::{Server, stop_child};
use crate::sys;

/// A mount takes no longer than this, even on a busy machine.
const MOUNT_TIME_MAX: Duration = Duration::from_secs(10);

/// The process that serves the mount, and its server. Dropped in this order.
struct DafsMount {
    child: Child,
    server: Server,
    /// What is exported, and where it is mounted.
    _directories: (TempDir, TempDir),
}

impl Host for DafsMount {
    fn cpu_ns(&self) -> Option<u64> {
        let mount = sys::cpu_ns_of(self.child.id()).ok()?;
        Some(mount + self.server.cpu_ns().ok()?)
    }
}

impl Drop for DafsMount {
    fn drop(&mut self) {
        stop_child(&mut self.child);
    }
}

/// Mounts what `server` exports at the second of the directories.
pub fn mounted(
    program: &Path,
    server: Server,
    transport: Transport,
    directories: (TempDir, TempDir),
    pins: &Pins,
) -> anyhow::Result<Mounted> {
    let at = directories.1.path().to_owned();
    let mut command = Command::new(program);
    command.args(["mount", "--foreground"]).arg(server.address(transport.name(), "bench")?).arg(&at);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    sys::tether(&mut command, &pins.all);
    let child = command.spawn().with_context(|| format!("cannot start {}", program.display()))?;
    let mut host = DafsMount { child, server, _directories: directories };
    let began = Instant::now();
    while !is_mounted(&at)? {
        if let Some(status) = host.child.try_wait()? {
            bail!("cannot mount: {} ended ({status}); its messages are above", program.display());
        }
        if began.elapsed() > MOUNT_TIME_MAX {
            bail!("cannot mount: nothing is mounted after {MOUNT_TIME_MAX:?}");
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    let name = format!("mount-{}", transport.name());
    Mounted::hosted(&Mount { name, directory: at }, Box::new(host))
}

/// Something is mounted there.
fn is_mounted(at: &Path) -> anyhow::Result<bool> {
    let mounts = std::fs::read_to_string("/proc/self/mounts")?;
    Ok(mounts.lines().any(|line| line.split(' ').nth(1) == at.to_str()))
}
