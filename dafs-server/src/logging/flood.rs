//! Bounds how many lines of one kind the log gets in a second, so that no client can fill a disk with them, or hide a line among them.

use std::collections::HashMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tracing::callsite::Identifier;
use tracing::field::{Field, Visit};
use tracing::{Event, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Filter};

/// Lines are counted for this long.
const WINDOW: Duration = Duration::from_secs(1);
/// Peers that are told apart in a window; those beyond count as one.
const PEERS_MAX: usize = 1024;
/// Fields that say whom a line is about.
const ABOUT: [&str; 2] = ["peer", "uid"];

static LINES_MAX: AtomicU32 = AtomicU32::new(u32::MAX);
static LEFT_OUT: AtomicU64 = AtomicU64::new(0);
static WINDOW_NOW: Mutex<Option<Window>> = Mutex::new(None);

/// Lines of one kind in a second from now on; half of them about one peer.
pub(super) fn set_lines_max(count: u32) {
    LINES_MAX.store(count, Ordering::Relaxed);
}

/// Lines left out since the process began.
pub fn left_out() -> u64 {
    LEFT_OUT.load(Ordering::Relaxed)
}

/// Says in the log how many lines were left out.
#[derive(Debug, Default)]
pub struct Summary {
    /// Those of which it has told.
    told: u64,
    /// When it last looked.
    looked: Option<Instant>,
}

impl Summary {
    /// Tells once a second; to be called more often.
    pub fn tell_if_due(&mut self, now: Instant) {
        if self.looked.is_none_or(|looked| now.duration_since(looked) >= WINDOW) {
            self.looked = Some(now);
            self.tell();
        }
    }

    /// Tells of those since the last time, if there are any.
    pub fn tell(&mut self) {
        let count = left_out() - self.told;
        if count > 0 {
            self.told += count;
            tracing::warn!(count, "lines were not written to this log: too many of one kind in a second");
        }
    }
}

/// Lets a line pass unless there were too many of its kind.
pub(super) struct Bounded;

impl<S: Subscriber> Filter<S> for Bounded {
    fn enabled(&self, _: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        true
    }

    fn event_enabled(&self, event: &Event<'_>, _: &Context<'_, S>) -> bool {
        let mut about = About::default();
        event.record(&mut about);
        let mut window = WINDOW_NOW.lock().unwrap_or_else(PoisonError::into_inner);
        let passes = Window::at(&mut window, Instant::now()).passes(
            event.metadata().callsite(),
            about.0,
            LINES_MAX.load(Ordering::Relaxed),
        );
        if !passes {
            LEFT_OUT.fetch_add(1, Ordering::Relaxed);
        }
        passes
    }
}

/// What was logged in the second that began then.
struct Window {
    began: Instant,
    lines: HashMap<Identifier, u32>,
    about: HashMap<(Identifier, String), u32>,
}

impl Window {
    fn at(current: &mut Option<Self>, now: Instant) -> &mut Self {
        if current.as_ref().is_some_and(|window| now.duration_since(window.began) >= WINDOW) {
            *current = None;
        }
        current.get_or_insert_with(|| Self { began: now, lines: HashMap::new(), about: HashMap::new() })
    }

    fn passes(&mut self, kind: Identifier, about: String, max: u32) -> bool {
        let lines = self.lines.entry(kind.clone()).or_default();
        if *lines >= max {
            return false;
        }
        if !about.is_empty() {
            let is_one_of_many =
                self.about.len() >= PEERS_MAX && !self.about.contains_key(&(kind.clone(), about.clone()));
            let about = if is_one_of_many { String::new() } else { about };
            let own = self.about.entry((kind, about)).or_default();
            if *own >= max.div_ceil(2) {
                return false;
            }
            *own += 1;
        }
        *lines += 1;
        true
    }
}

/// Whom a line is about: its fields that say so, without ports.
#[derive(Default)]
struct About(String);

impl Visit for About {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        if ABOUT.contains(&field.name()) {
            let text = format!("{value:?}");
            let port = text.rsplit_once(':').map_or(&*text, |(address, _)| address);
            // Writing to a string cannot fail.
            let _ = write!(self.0, "{port} ");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;

    use tracing_subscriber::Layer;
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    struct Counting(Arc<AtomicUsize>);

    impl<S: Subscriber> Layer<S> for Counting {
        fn on_event(&self, _: &Event<'_>, _: Context<'_, S>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    // [LIMIT-11] [LIMIT-18]
    #[test]
    fn lines_of_one_kind_are_bounded_and_counted() {
        let lines = Arc::new(AtomicUsize::new(0));
        let log = tracing_subscriber::registry().with(Counting(Arc::clone(&lines)).with_filter(Bounded));
        set_lines_max(10);
        let before = left_out();
        tracing::subscriber::with_default(log, || {
            // One window, however slowly this runs: it is over when a second has passed, so what passes is counted by window.
            *WINDOW_NOW.lock().unwrap() = Some(Window {
                began: Instant::now() + Duration::from_secs(3600),
                lines: HashMap::new(),
                about: HashMap::new(),
            });
            for port in 0..100 {
                tracing::info!(peer = %format_args!("10.0.0.1:{port}"), "a kind of line");
            }
            assert_eq!(lines.load(Ordering::Relaxed), 5, "half of it for one peer");
            for host in 0..100 {
                tracing::info!(peer = %format_args!("10.0.1.{host}:1"), "another kind of line");
            }
            assert_eq!(lines.load(Ordering::Relaxed), 15, "no more of one kind");
            tracing::info!("what happens seldom is always there");
            assert_eq!(lines.load(Ordering::Relaxed), 16);
        });
        assert!(left_out() - before >= 95 + 90);
        // [LIMIT-19] By the clock, however often it is called.
        let (mut summary, now) = (Summary::default(), Instant::now());
        summary.tell_if_due(now);
        assert!(summary.told >= 185);
        summary.told -= 1;
        let told = summary.told;
        summary.tell_if_due(now + WINDOW - Duration::from_millis(1));
        assert_eq!(summary.told, told);
        summary.tell_if_due(now + WINDOW);
        assert!(summary.told > told);
        set_lines_max(u32::MAX);
    }
}
