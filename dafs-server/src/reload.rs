//! Settings that are read again at SIGHUP.
//!
//! Reading files may block, even on another host, and the loop must not. So one thread waits for the signal, and starts another for each
//! reload. One that hangs keeps nobody from reading later; what it has read then counts no more.

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::config::{Config, ConfigError};

/// Reads the settings again, or returns what is wrong with them.
pub type ReadAgain = Box<dyn Fn() -> Result<Config, ConfigError> + Send + Sync>;

/// So long the file of settings and that of keys may take until the log says so.
const PATIENCE: Duration = Duration::from_secs(10);

/// Threads that read, at a time: the others hang.
const READERS_MAX: usize = 8;

/// SIGHUP ends the process no more. What comes before the server serves is followed then.
#[derive(Debug)]
pub struct Hangups(UnixStream);

impl Hangups {
    /// Catches SIGHUP from now on.
    pub fn watch() -> std::io::Result<Self> {
        let (read, write) = UnixStream::pair()?;
        signal_hook::low_level::pipe::register(signal_hook::consts::SIGHUP, write)?;
        Ok(Self(read))
    }
}

/// From now on a thread reads the settings again at each SIGHUP, and hands them on.
pub(crate) fn at_hangup(
    hangups: Hangups,
    read_again: ReadAgain,
    apply: impl Fn(&Config) + Send + Sync + 'static,
) -> std::io::Result<()> {
    start(hangups, Reload { read_again, apply: Box::new(apply), latest: Mutex::new(0) }, PATIENCE)
}

struct Reload {
    read_again: ReadAgain,
    apply: Box<dyn Fn(&Config) + Send + Sync>,
    /// The number of the last one that began. Held while one is applied.
    latest: Mutex<u64>,
}

fn start(Hangups(mut hangups): Hangups, reload: Reload, patience: Duration) -> std::io::Result<()> {
    let reload = Arc::new(reload);
    let wait = move || {
        // Several at once are one.
        while matches!(hangups.read(&mut [0; 64]), Ok(count) if count > 0) {
            begin(&reload, patience);
        }
    };
    std::thread::Builder::new().name("reload".into()).spawn(wait).map(drop)
}

/// Reads in a thread of its own, and waits for that a while.
fn begin(reload: &Arc<Reload>, patience: Duration) {
    // Each reader holds one, and so does whoever waits for the signal.
    if Arc::strong_count(reload) > READERS_MAX {
        tracing::error!(
            "cannot reload the settings: earlier reloads wait for files that do not answer; \
             see to their file systems, or restart the server"
        );
        return;
    }
    tracing::info!("reading the settings again");
    let number = {
        let mut latest = reload.latest.lock().unwrap_or_else(PoisonError::into_inner);
        *latest += 1;
        *latest
    };
    let (ended, told) = channel::<()>();
    let reader = Arc::clone(reload);
    let read = move || {
        reader.run(number);
        drop(ended);
    };
    if let Err(error) = std::thread::Builder::new().name("reading".into()).spawn(read) {
        tracing::error!(%error, "cannot reload the settings; the previous ones stay in force");
    } else if told.recv_timeout(patience) == Err(RecvTimeoutError::Timeout) {
        tracing::error!(
            seconds = patience.as_secs(),
            "cannot reload the settings yet: reading their files has not ended; those from before stay. \
             See to the file system that does not answer, or name other files and send SIGHUP again"
        );
    }
}

impl Reload {
    fn run(&self, number: u64) {
        let read = (self.read_again)();
        let latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        if *latest != number {
            tracing::warn!("settings that took long to read are ignored: newer ones were read meanwhile");
            return;
        }
        match read {
            Ok(config) => (self.apply)(&config),
            Err(error) => {
                tracing::error!(%error, "cannot reload the settings; the previous ones stay in force")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    // [ACC-161]
    #[test]
    fn hanging_reload_neither_blocks_nor_undoes_a_later_one() {
        let (release, released) = channel::<()>();
        let (applied, configs) = channel();
        let (begun, begins) = channel();
        let (calls, released) = (AtomicU32::new(0), Mutex::new(released));
        let (ended, ends) = channel::<()>();
        let (ended, begun) = (Mutex::new(Some(ended)), Mutex::new(begun));
        let read_again: ReadAgain = Box::new(move || {
            let call = calls.fetch_add(1, Ordering::Relaxed);
            begun.lock().unwrap().send(()).unwrap();
            let ended = if call == 0 { ended.lock().unwrap().take() } else { None };
            if call == 0 {
                let _ = released.lock().unwrap().recv();
            }
            drop(ended);
            Ok(Config { sessions_max: call, ..Config::default() })
        });
        let applied = Mutex::new(applied);
        let apply = move |config: &Config| applied.lock().unwrap().send(config.sessions_max).unwrap();
        let (mut hang_up, hangups) = UnixStream::pair().unwrap();
        let reload = Reload { read_again, apply: Box::new(apply), latest: Mutex::new(0) };
        start(Hangups(hangups), reload, Duration::from_millis(1)).unwrap();
        // One at a time: several at once would be one.
        for _ in 0..2 {
            hang_up.write_all(&[0]).unwrap();
            begins.recv().unwrap();
        }
        assert_eq!(configs.recv(), Ok(1), "the second one, beside the first");
        drop(release);
        assert!(ends.recv().is_err(), "the first one has read too");
        hang_up.write_all(&[0]).unwrap();
        assert_eq!(configs.recv(), Ok(2), "and was not applied");
    }
}
