//! NFS-Ganesha, started for one benchmark and gone after it.
//!
//! NFS version 3 insists on a portmapper, and a Ganesha that registers itself with the machine's would take the place
//! of the NFS server of that machine. So both run in network and mount namespaces of their own, with a private
//! loopback and a private `/run`; a client's socket made in there works from anywhere in this process.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use tempfile::TempDir;

use crate::interrupt;
use crate::peer::libnfs::NfsFile;
use crate::progress::POLL_INTERVAL;
use crate::sys;

/// What Debian calls the parts.
pub(crate) const PACKAGES: &str = "nfs-ganesha nfs-ganesha-vfs libnfs13";

const START_TIMEOUT: Duration = Duration::from_secs(20);
// In a private network any ports do.
const NFS_PORT: u16 = 2049;
const MOUNT_PORT: u16 = 2050;
const EXPORT: &str = "/bench";

/// A running server; killed when dropped.
#[derive(Debug)]
pub(crate) struct Ganesha {
    // Dropping it tells the thread to end.
    stop: Option<mpsc::Sender<()>>,
    // The children are tethered to the thread that started them, so it stays.
    thread: Option<JoinHandle<()>>,
    process: u32,
}

impl Ganesha {
    /// Exports `directory` and calls `connect` within the server's network until it succeeds. `cpus` are those that
    /// the server may use.
    pub(crate) fn start<T: Send + 'static>(
        directory: &Path,
        file: &str,
        cpus: &[usize],
        connect: impl Fn(&NfsFile) -> anyhow::Result<T> + Send + 'static,
    ) -> anyhow::Result<(Self, T)> {
        let place = NfsFile {
            host: "127.0.0.1".to_owned(),
            nfs_port: NFS_PORT,
            mount_port: MOUNT_PORT,
            export: EXPORT.to_owned(),
            file: format!("/{file}"),
        };
        let (directory, cpus) = (directory.to_owned(), cpus.to_vec());
        let (stop, stopped) = mpsc::channel::<()>();
        let (tell, told) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let started = Servers::start(&directory, &cpus).and_then(|mut servers| {
                let connected = servers.connect(&place, &connect)?;
                Ok((servers, connected))
            });
            match started {
                Ok((servers, connected)) => {
                    let _ = tell.send(Ok((servers.ganesha.id(), connected)));
                    // Ends when the sender is dropped.
                    let _ = stopped.recv();
                    drop(servers);
                }
                Err(error) => {
                    let _ = tell.send(Err(error));
                }
            }
        });
        let mut ganesha = Self { stop: Some(stop), thread: Some(thread), process: 0 };
        let (process, connected) =
            told.recv().map_err(|_| anyhow!("the thread that starts NFS-Ganesha panicked"))??;
        ganesha.process = process;
        Ok((ganesha, connected))
    }

    /// Time that it has spent on CPUs, in nanoseconds.
    pub(crate) fn cpu_ns(&self) -> std::io::Result<u64> {
        sys::cpu_ns_of(self.process)
    }
}

impl Drop for Ganesha {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The two processes, with their files.
struct Servers {
    ganesha: Child,
    portmapper: Child,
    state: TempDir,
}

impl Servers {
    /// Moves this thread into namespaces of its own and starts both there.
    fn start(directory: &Path, cpus: &[usize]) -> anyhow::Result<Self> {
        let _ = sys::pin_thread(cpus);
        sys::enter_private_namespaces()
            .context("cannot start NFS-Ganesha without root and namespaces of its own (CAP_SYS_ADMIN)")?;
        let state = tempfile::tempdir().context("cannot create a directory for NFS-Ganesha")?;
        std::fs::create_dir_all("/run/rpcbind").context("cannot create /run/rpcbind")?;
        let mut command = Command::new("rpcbind");
        command.arg("-f").stderr(Stdio::null());
        let mut portmapper = spawn(&mut command, cpus)?;
        let started =
            await_path(Path::new("/run/rpcbind.sock")).and_then(|()| start_ganesha(directory, &state, cpus));
        match started {
            Ok(ganesha) => Ok(Self { ganesha, portmapper, state }),
            Err(error) => {
                end(&mut portmapper);
                Err(error)
            }
        }
    }

    /// Connects, as soon as the server is ready for it.
    fn connect<T>(
        &mut self,
        place: &NfsFile,
        connect: &impl Fn(&NfsFile) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let start = Instant::now();
        loop {
            interrupt::check()?;
            let error = match connect(place) {
                Ok(connected) => return Ok(connected),
                Err(error) => error,
            };
            if let Some(status) = self.ganesha.try_wait()? {
                bail!(
                    "cannot start NFS-Ganesha, which needs root: it ended ({status}): {}",
                    last_words(&log_path(&self.state))
                );
            }
            if start.elapsed() > START_TIMEOUT {
                return Err(error.context("cannot mount NFS-Ganesha"));
            }
            std::thread::sleep(POLL_INTERVAL * 10);
        }
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        // Nothing of theirs is to survive, so there is nothing to end in order.
        end(&mut self.ganesha);
        end(&mut self.portmapper);
    }
}

fn end(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}

fn start_ganesha(directory: &Path, state: &TempDir, cpus: &[usize]) -> anyhow::Result<Child> {
    let config = state.path().join("ganesha.conf");
    std::fs::write(&config, configuration(directory, state.path())?)
        .with_context(|| format!("cannot write {}", config.display()))?;
    let mut command = Command::new("ganesha.nfsd");
    command.arg("-F").arg("-f").arg(&config).arg("-L").arg(log_path(state)).args(["-N", "WARN"]);
    command.arg("-p").arg(state.path().join("pid")).stderr(Stdio::null());
    spawn(&mut command, cpus)
}

fn spawn(command: &mut Command, cpus: &[usize]) -> anyhow::Result<Child> {
    command.stdin(Stdio::null()).stdout(Stdio::null());
    sys::tether(command, cpus);
    command.spawn().with_context(|| {
        let name = command.get_program().to_string_lossy();
        format!("cannot start {name}; is it installed? (Debian: apt-get install {PACKAGES})")
    })
}

fn log_path(state: &TempDir) -> PathBuf {
    state.path().join("log")
}

fn await_path(path: &Path) -> anyhow::Result<()> {
    let start = Instant::now();
    while !path.exists() {
        interrupt::check()?;
        if start.elapsed() > START_TIMEOUT {
            bail!("cannot start rpcbind: it did not create {}", path.display());
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}

/// The smallest configuration for NFS version 3 over TCP on one directory. libnfs 4 cannot write more than a few KiB
/// with version 4.
fn configuration(directory: &Path, state: &Path) -> anyhow::Result<String> {
    let quoted = |path: &Path| match path.to_str() {
        Some(text) if !text.contains(['"', '\n']) => Ok(format!("\"{text}\"")),
        _ => Err(anyhow!(
            "cannot export {} by NFS-Ganesha: its name has a quote or no UTF-8; choose another --dir",
            path.display()
        )),
    };
    Ok(format!(
        "NFS_CORE_PARAM {{ Protocols = 3; NFS_Port = {NFS_PORT}; MNT_Port = {MOUNT_PORT}; mount_path_pseudo = true;
  Enable_NLM = false; Enable_RQUOTA = false; Enable_UDP = false; }}
NFSV4 {{ Graceless = true; RecoveryRoot = {}; }}
EXPORT {{ Export_Id = 1; Path = {}; Pseudo = {EXPORT}; Protocols = 3; Transports = TCP; SecType = sys;
  Access_Type = RW; Squash = No_Root_Squash; FSAL {{ Name = VFS; }} }}
",
        quoted(state)?,
        quoted(directory)?
    ))
}

fn last_words(log: &Path) -> String {
    const LINES: usize = 1;
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(LINES)..].join(" | ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configuration_names_the_directory_in_quotes() {
        let text = configuration(Path::new("/dev/shm/a b"), Path::new("/tmp/x")).unwrap();
        assert!(text.contains("Path = \"/dev/shm/a b\";"), "{text}");
    }

    #[test]
    fn configuration_of_a_path_that_would_break_out_is_refused() {
        assert!(configuration(Path::new("/tmp/\"; }"), Path::new("/tmp/x")).is_err());
    }
}
