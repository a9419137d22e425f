//! Ctrl-C, and other signals that end a command. A long command checks them at every step, so that it can say what it has done. This also
//! ends a command whose server no longer answers.

use std::io::{ErrorKind, Read};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::report::{INTERRUPTED, say};

/// After the first signal a command may end in its own way for as long as it gets on. Without any progress it is
/// ended after this time.
const SILENCE_MAX: Duration = Duration::from_secs(2);

/// How often it is looked whether there was progress.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

static PROGRESS: AtomicU64 = AtomicU64::new(0);

/// Something was waited for, and has come: the command gets on.
pub(crate) fn progressed() {
    PROGRESS.fetch_add(1, Ordering::Relaxed);
}

/// Another number than before, when something has come since.
pub(crate) fn progress() -> u64 {
    PROGRESS.load(Ordering::Relaxed)
}

/// Whether what is done at the end of a command may wait for a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    /// Nothing moves any more, but that need not be the server's fault.
    Some,
    /// The user does not want to wait.
    None,
}

/// Set when the user pressed Ctrl-C.
#[derive(Clone, Debug, Default)]
pub(crate) struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// From now on the first Ctrl-C (or SIGTERM, or SIGHUP) only sets this. One more Ctrl-C ends the program when `last_words` have been
    /// said, and so does silence after the first; another signal then ends it at once. Programs that end this one, such as timeout(1), send
    /// SIGTERM to it and to its group: that is not the impatience of a user.
    pub(crate) fn catch(last_words: impl FnOnce(Patience) + Send + 'static) -> Self {
        let flag = Arc::new(AtomicBool::new(false));
        let pairs = UnixStream::pair().and_then(|any| Ok([any, UnixStream::pair()?]));
        let (pressed, press) = match pairs {
            Ok([(any, any_press), (again, again_press)]) => {
                (Some([any, again]), Some([any_press, again_press]))
            }
            Err(_) => (None, None),
        };
        let last_words_begin = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&last_words_begin);
        // Without the thread the second signal ends the program.
        let is_waited = pressed.is_some_and(|pressed| {
            let thread = std::thread::Builder::new().name("interrupt".into());
            thread.spawn(move || end_in_silence(pressed, &ends, last_words)).is_ok()
        });
        let shutdown = if is_waited { last_words_begin } else { Arc::clone(&flag) };
        for signal in heeded([SIGHUP, SIGINT, SIGTERM]) {
            // In this order: the shutdown looks at its flag before the second handler sets one. Where handlers cannot be set, the signal
            // ends the program as ever.
            let caught = signal_hook::flag::register_conditional_shutdown(
                signal,
                i32::from(INTERRUPTED),
                Arc::clone(&shutdown),
            )
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&flag)))
            .and_then(|_| {
                let tell = |press: &UnixStream| {
                    signal_hook::low_level::pipe::register(signal, press.try_clone()?).map(drop)
                };
                let Some([any, again]) = &press else { return Ok(()) };
                // So that the first is known for a Ctrl-C when it is heard of.
                if signal == SIGINT {
                    tell(again)?;
                }
                tell(any)
            });
            if let Err(error) = caught {
                tracing::debug!("signal {signal}: {error}");
            }
        }
        Self(flag)
    }

    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// What starts this program may have blocked the signals that end it: then nobody could.
pub(crate) fn unblock() {
    use nix::sys::signal::{SigSet, Signal};
    let heard: SigSet = [Signal::SIGHUP, Signal::SIGINT, Signal::SIGTERM].into_iter().collect();
    if let Err(error) = heard.thread_unblock() {
        tracing::debug!("cannot unblock signals: {error}");
    }
}

/// Of these signals those that this process was not started to ignore, as nohup(1) and shells have it.
pub(crate) fn heeded<const N: usize>(signals: [i32; N]) -> impl Iterator<Item = i32> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    // One bit each, the first the lowest.
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    signals.into_iter().filter(move |signal| ignored & (1 << (signal - 1)) == 0)
}

/// Waits for the first signal, and then for a Ctrl-C, or for the program to end or to get on no more.
fn end_in_silence(
    [mut any, mut pressed]: [UnixStream; 2],
    last_words_begin: &AtomicBool,
    last_words: impl FnOnce(Patience),
) {
    if any.read_exact(&mut [0]).is_err() {
        return;
    }
    // The first may be one, and is not the second.
    let _ = pressed.set_nonblocking(true).and_then(|()| pressed.read(&mut [0]).map(drop));
    let _ = pressed.set_nonblocking(false);
    // Without a limit it would only be a second signal that ends the program.
    let _ = pressed.set_read_timeout(Some(LOOK_INTERVAL));
    let (mut known, mut since) = (PROGRESS.load(Ordering::Relaxed), Instant::now());
    let (why, patience) = loop {
        match pressed.read(&mut [0]) {
            Ok(count) if count > 0 => break ("interrupted twice".to_owned(), Patience::None),
            Err(error) if is_none_yet(&error) => {}
            _ => std::thread::sleep(LOOK_INTERVAL),
        }
        let now = PROGRESS.load(Ordering::Relaxed);
        if now != known {
            (known, since) = (now, Instant::now());
        } else if since.elapsed() >= SILENCE_MAX {
            let seconds = SILENCE_MAX.as_secs();
            break (format!("interrupted, and nothing has moved for {seconds} s"), Patience::Some);
        }
    };
    last_words_begin.store(true, Ordering::Relaxed);
    last_words(patience);
    say(&format!("{why}: what was not finished is missing or incomplete"));
    std::process::exit(i32::from(INTERRUPTED));
}

fn is_none_yet(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}
