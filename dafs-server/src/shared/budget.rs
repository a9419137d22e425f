//! Every budget of the server, in one place: what there is, who has how much of it, and how often somebody was refused.
//! `spec/design/limits.md` is the table for people.
//!
//! It decides how much there is of each thing; when something is taken, and what being refused means, is for those who take it.

use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dafs_proto::budget::{Budget, Owner, Terms};
use dafs_proto::transport::shm::{Closers, ShmLimits};
use nix::sys::resource::{Resource, getrlimit};

use crate::config::{Config, LimitConfig};

/// The budgets of a process. Each has a limit, a share for one owner, and a reserve.
#[derive(Clone, Debug)]
pub(crate) struct Budgets {
    /// Sessions of all workers.
    pub(crate) sessions: Arc<Budget>,
    /// Descriptors of open files.
    pub(crate) descriptors: Arc<Budget>,
    /// From this descriptor on they are for connections that begin, and for what is opened in passing.
    descriptors_spare_from: u64,
    /// Bytes of replies that wait for clients to take them.
    pub(crate) unsent: Arc<Budget>,
    /// Bytes of views, and of their descriptions.
    pub(crate) views: Arc<Budget>,
    /// What memory of clients over shared memory takes.
    pub(crate) memory: ShmLimits,
    /// Connections that have no session yet. They are bounded for each listener, where they are; here they are counted.
    pub(crate) handshakes: Arc<Budget>,
    /// What one session may have, whoever has it.
    pub(crate) of_session: Arc<SessionLimits>,
}

/// Limits of one session.
#[derive(Debug)]
pub(crate) struct SessionLimits {
    /// Open handles.
    pub(crate) handles: SessionLimit,
    /// Views that are described.
    pub(crate) views: SessionLimit,
    /// Tokens that are alive.
    pub(crate) tokens: SessionLimit,
}

/// How many one session may have of something, and how often one was refused more.
#[derive(Debug)]
pub(crate) struct SessionLimit {
    max: u32,
    refused: AtomicU64,
}

impl SessionLimit {
    fn new(max: u32) -> Self {
        Self { max, refused: AtomicU64::new(0) }
    }

    /// As many as one session may have.
    pub(crate) fn max(&self) -> u32 {
        self.max
    }

    /// A session was refused one more.
    pub(crate) fn count_refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// How often that was.
    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }
}

impl SessionLimits {
    /// Name and limit of each, for metrics.
    pub(crate) fn all(&self) -> [(&'static str, &SessionLimit); 3] {
        [("handles", &self.handles), ("views", &self.views), ("tokens", &self.tokens)]
    }
}

/// Descriptors that open files leave alone: for connections, for what operations open in passing, and for looking things up.
const DESCRIPTORS_KEPT_MIN: u64 = 64;
/// The same, as a part of the limit.
const DESCRIPTORS_KEPT_PART: u64 = 4;
/// Descriptors that sessions leave to handshakes and to what is opened in passing: a part of the limit, and no more than this.
const DESCRIPTORS_SPARE_PART: u64 = 16;
const DESCRIPTORS_SPARE_MAX: u64 = 1024;
/// Mappings that a process may have, where the kernel does not say.
const MAPPINGS_USUAL: u64 = 65_530;
/// Address space left to everything else, bytes: where there is a limit of it, half.
const MAPPED_SIZE_USUAL: u64 = 32 << 40;
/// Threads that close what clients sent in place of memory files: 16 of one owner. An honest client needs none.
const CLOSERS: Terms = Terms { limit: 320, share_percent: 5 };
/// Memory of a machine that does not tell, bytes.
const MEMORY_SIZE_USUAL: u64 = 4 << 30;

impl Budgets {
    /// As the settings say, within what this process has. Reads limits of the system: not blocking.
    pub(crate) fn new(settings: &Config) -> Self {
        let LimitConfig {
            identity_share_percent,
            descriptors_max,
            mappings_max,
            mapped_size_max,
            sparse_size_max,
            unsent_size_max,
            views_size_max,
            handshakes_max,
            views_max,
            tokens_max,
            ..
        } = settings.limits;
        let trusted = vec![Owner::User(0), Owner::User(settings.access.server.identity.uid)];
        let budget = |limit: u64| {
            let terms = Terms { limit, share_percent: identity_share_percent.into() };
            Budget::new(terms, trusted.clone())
        };
        Self {
            sessions: budget(settings.sessions_max.into()),
            descriptors: budget(within("--descriptors-max", descriptors_max, descriptors_of_process())),
            descriptors_spare_from: descriptors_spare_from(open_files_max()),
            unsent: budget(unsent_size_max),
            views: budget(views_size_max),
            memory: ShmLimits {
                mappings: budget(within("--mappings-max", mappings_max, mappings_of_process())),
                mapped: budget(mapped_size_max.unwrap_or_else(address_space_of_process)),
                sparse: budget(sparse_size_max.unwrap_or_else(sparse_size)),
                closers: Closers::new(Budget::new(CLOSERS, trusted.clone())),
            },
            handshakes: budget(handshakes_max.into()),
            of_session: Arc::new(SessionLimits {
                handles: SessionLimit::new(settings.handles_max),
                views: SessionLimit::new(views_max),
                tokens: SessionLimit::new(tokens_max),
            }),
        }
    }

    /// A session may keep these descriptors of its connection, and leave enough for whoever comes to be told that there is no room. The
    /// system gives the lowest that is free, so their numbers say how few are left.
    pub(crate) fn leave_descriptors_spare(&self, connection: &[RawFd]) -> bool {
        connection.iter().all(|fd| u64::try_from(*fd).is_ok_and(|fd| fd < self.descriptors_spare_from))
    }

    /// Name and budget of each, for metrics.
    pub(crate) fn all(&self) -> [(&'static str, &Budget); 9] {
        [
            ("sessions", &self.sessions),
            ("descriptors", &self.descriptors),
            ("unsent_bytes", &self.unsent),
            ("view_bytes", &self.views),
            ("mappings", &self.memory.mappings),
            ("mapped_bytes", &self.memory.mapped),
            ("sparse_bytes", &self.memory.sparse),
            ("closing_threads", self.memory.closers.threads()),
            ("handshakes", &self.handshakes),
        ]
    }
}

/// What is wanted, as far as the process can give it and keep what it needs.
fn within(flag: &str, wanted: Option<u64>, most: u64) -> u64 {
    match wanted {
        Some(wanted) if wanted > most => {
            tracing::warn!(flag, wanted, most, "the limits of this process and system permit fewer");
            most
        }
        wanted => wanted.unwrap_or(most),
    }
}

fn descriptors_spare_from(limit: u64) -> u64 {
    limit - (limit / DESCRIPTORS_SPARE_PART).min(DESCRIPTORS_SPARE_MAX)
}

fn descriptors_of_process() -> u64 {
    let limit = open_files_max();
    limit - (limit / DESCRIPTORS_KEPT_PART).max(DESCRIPTORS_KEPT_MIN).min(limit)
}

/// The process's limit of open files; the usual one where the system does not tell.
pub(crate) fn open_files_max() -> u64 {
    const USUAL: u64 = 1024;
    getrlimit(Resource::RLIMIT_NOFILE).map_or(USUAL, |(limit, _)| limit)
}

/// A server that can have fewer than this many files open, all told, serves nobody.
const OPEN_FILES_NEEDED: u64 = 2 * DESCRIPTORS_KEPT_MIN;
/// With fewer it is soon at its end.
const OPEN_FILES_ADVISED: u64 = 1024;

/// Says that the limit of open files is too low, before clients meet it.
///
/// # Errors
/// No file could be opened.
pub(crate) fn check_open_files(limit: u64) -> Result<(), String> {
    if limit < OPEN_FILES_NEEDED {
        return Err(format!(
            "cannot serve with a limit of {limit} open files: {DESCRIPTORS_KEPT_MIN} are the server's own; \
             allow {OPEN_FILES_NEEDED} at least, and better {OPEN_FILES_ADVISED} or more (`ulimit -n`, LimitNOFILE= of systemd)"
        ));
    }
    if limit < OPEN_FILES_ADVISED {
        let files = descriptors_of_process();
        tracing::warn!(
            limit,
            "clients can have no more than {files} files open at a time; allow {OPEN_FILES_ADVISED} or more \
             (`ulimit -n`, LimitNOFILE= of systemd)"
        );
    }
    Ok(())
}

/// Half of what the kernel gives: every allocation may need another, and an allocation that fails ends the process.
fn mappings_of_process() -> u64 {
    let text = std::fs::read_to_string("/proc/sys/vm/max_map_count").unwrap_or_default();
    text.trim().parse().unwrap_or(MAPPINGS_USUAL) / 2
}

fn address_space_of_process() -> u64 {
    let limit = getrlimit(Resource::RLIMIT_AS).map_or(u64::MAX, |(limit, _)| limit);
    (limit / 2).min(MAPPED_SIZE_USUAL)
}

/// Half of the machine's memory.
fn sparse_size() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    crate::config::kibibytes(&text, "MemTotal:").unwrap_or(MEMORY_SIZE_USUAL) / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    // [LIMIT-4] [LIMIT-16]
    #[test]
    fn budgets_leave_the_process_what_it_needs_itself() {
        leaves_what_it_needs(&Budgets::new(&Config::default()));
        let mut settings = Config::default();
        (settings.limits.descriptors_max, settings.limits.mappings_max) = (Some(u64::MAX), Some(u64::MAX));
        leaves_what_it_needs(&Budgets::new(&settings));
        (settings.limits.descriptors_max, settings.limits.mappings_max) = (Some(7), Some(8));
        let budgets = Budgets::new(&settings);
        assert_eq!((budgets.descriptors.limit(), budgets.memory.mappings.limit()), (7, 8));
    }

    fn leaves_what_it_needs(budgets: &Budgets) {
        let limit = open_files_max();
        assert!(budgets.descriptors.limit() <= limit - DESCRIPTORS_KEPT_MIN.min(limit));
        let mappings = std::fs::read_to_string("/proc/sys/vm/max_map_count").unwrap();
        assert!(budgets.memory.mappings.limit() <= mappings.trim().parse::<u64>().unwrap() / 2);
        for (name, budget) in budgets.all() {
            assert!(budget.share() <= budget.limit().div_ceil(2), "{name}");
        }
    }
}
