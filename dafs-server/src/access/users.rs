//! Groups of users, from the system's user database. That may be a directory service far away: threads ask it, and the loop never does.

use std::collections::{HashMap, VecDeque};
use std::ffi::CString;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::unistd::{Gid, Uid, User, getgrouplist};

use super::identity::NOBODY;
use crate::storage::Identity;

/// An answer is used again for this long.
const KEPT_FOR: Duration = Duration::from_secs(60);
/// Answers kept at most.
const KEPT_MAX: usize = 1024;
/// Threads that ask at a time: one that hangs over one user leaves others to ask about the next.
const ASKING_MAX: usize = 8;
/// Whoever waits for the answer about one user, at most: as many as may be in a handshake, unless more are configured.
const WAITING_MAX: usize = 1024;

type LookUp = Box<dyn Fn(u32) -> io::Result<Identity> + Send + Sync>;
type Then = Box<dyn FnOnce(bool) + Send>;

/// The user database, with its answers kept for a minute.
pub(super) struct Users {
    inside: Arc<Inside>,
}

struct Inside {
    look_up: LookUp,
    state: Mutex<Lookups>,
}

#[derive(Default)]
struct Lookups {
    known: HashMap<u32, (Instant, Identity)>,
    /// Whoever waits for an answer, by user.
    asked: HashMap<u32, VecDeque<Then>>,
    /// Asked for, and no thread has begun. Empty without threads.
    queue: VecDeque<u32>,
    threads: usize,
}

impl Default for Users {
    fn default() -> Self {
        Self::new(look_up)
    }
}

impl std::fmt::Debug for Users {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Users({} known)", self.inside.lock().known.len())
    }
}

impl Users {
    fn new(look_up: impl Fn(u32) -> io::Result<Identity> + Send + Sync + 'static) -> Self {
        Self { inside: Arc::new(Inside { look_up: Box::new(look_up), state: Mutex::default() }) }
    }

    /// Whether the user is known now. If not, a thread asks the database and calls `then`, with whether it is then; of many, only the
    /// latest. Not blocking.
    ///
    /// # Errors
    /// There is no thread to ask with.
    pub(super) fn ask(&self, uid: u32, then: impl FnOnce(bool) + Send + 'static) -> io::Result<bool> {
        let mut state = self.inside.lock();
        if state.known.get(&uid).is_some_and(|(since, _)| since.elapsed() < KEPT_FOR) {
            return Ok(true);
        }
        let waiting = state.asked.entry(uid).or_default();
        let is_first = waiting.is_empty();
        // Those before may have hung up.
        if waiting.len() == WAITING_MAX {
            waiting.pop_front();
        }
        waiting.push_back(Box::new(then));
        if is_first {
            state.queue.push_back(uid);
        }
        if state.threads < ASKING_MAX && !state.queue.is_empty() {
            let inside = Arc::clone(&self.inside);
            match std::thread::Builder::new().name("dafs-users".into()).spawn(move || inside.answer_all()) {
                Ok(_) => state.threads += 1,
                Err(error) if state.threads == 0 => {
                    state.queue.clear();
                    state.asked.remove(&uid);
                    return Err(error);
                }
                // A thread that is there answers when it is done with another.
                Err(error) => tracing::warn!(%error, "cannot start a thread for the user database"),
            }
        }
        Ok(false)
    }

    /// The user with its groups, as last known. One that the database does not know has the group nobody and no others. `None` where
    /// the database was not asked, or could not be. Not blocking.
    pub(super) fn identity(&self, uid: u32) -> Option<Identity> {
        self.inside.lock().known.get(&uid).map(|(_, identity)| identity.clone())
    }
}

impl Inside {
    /// Every step leaves the state whole.
    fn lock(&self) -> MutexGuard<'_, Lookups> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn answer_all(&self) {
        let mut state = self.lock();
        while let Some(uid) = state.queue.pop_front() {
            drop(state);
            let found = (self.look_up)(uid);
            state = self.lock();
            if state.known.len() >= KEPT_MAX {
                state.known.clear();
            }
            let is_known = found.is_ok();
            match found {
                Ok(identity) => drop(state.known.insert(uid, (Instant::now(), identity))),
                Err(error) => {
                    tracing::warn!(uid, %error, "cannot look up a user in the user database; its session is refused");
                    // What was known before is older than it may be.
                    state.known.remove(&uid);
                }
            }
            let waiting = state.asked.remove(&uid).unwrap_or_default();
            drop(state);
            waiting.into_iter().for_each(|then| then(is_known));
            state = self.lock();
        }
        state.threads -= 1;
    }
}

fn without_groups(uid: u32) -> Identity {
    Identity { uid, gid: NOBODY, groups: Arc::from([]) }
}

/// An error is no answer: whoever takes it for "no groups" lets a user in as another.
fn look_up(uid: u32) -> io::Result<Identity> {
    let user = match User::from_uid(Uid::from_raw(uid)) {
        // So says getpwuid_r(3) of a user who is not there, and of a database that is none.
        Err(Errno::ENOENT | Errno::ESRCH) => None,
        found => found?,
    };
    let Some(user) = user else { return Ok(without_groups(uid)) };
    let groups = getgrouplist(&CString::new(user.name)?, user.gid)?.into_iter().map(Gid::as_raw);
    Ok(Identity { uid, gid: user.gid.as_raw(), groups: groups.collect() })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn user_database_has_bounded_threads_and_answers() {
        let (begun, begins) = channel();
        let (end, ends) = channel::<()>();
        let ends = Mutex::new(ends);
        let users = Users::new(move |uid| {
            begun.send(uid).unwrap();
            // Until all may go on.
            let _ = ends.lock().unwrap().recv();
            Ok(without_groups(uid))
        });
        let (tell, told) = channel();
        let count = 1025;
        for uid in 0..count {
            let tell = tell.clone();
            assert!(!users.ask(uid, move |_| tell.send(uid).unwrap()).unwrap());
        }
        let began: Vec<u32> = (0..8).map(|_| begins.recv().unwrap()).collect();
        assert_eq!(users.inside.lock().threads, 8, "{began:?}");
        assert_eq!(users.inside.lock().queue.len(), 1025 - 8, "nobody else asks");
        drop(end);
        assert_eq!(told.iter().take(1025).count(), 1025);
        assert!(users.inside.lock().known.len() <= 1024);
    }

    fn asked(users: &Users, uid: u32) -> Identity {
        let (send, receive) = channel();
        if !users.ask(uid, move |is_known| send.send(is_known).unwrap()).unwrap() {
            assert!(receive.recv().unwrap());
        }
        assert!(users.ask(uid, |_| panic!("it is known")).unwrap());
        users.identity(uid).unwrap()
    }

    #[test]
    fn users_root_has_group_root() {
        let root = asked(&Users::default(), 0);
        assert_eq!((root.uid, root.gid), (0, 0));
        assert!(root.groups.contains(&0));
    }

    #[test]
    fn users_unknown_user_has_no_groups() {
        let users = Users::default();
        let expected = Identity { uid: 3_999_999_999, gid: NOBODY, groups: Arc::from([]) };
        assert_eq!(users.identity(3_999_999_999), None, "nobody has asked");
        assert_eq!(asked(&users, 3_999_999_999), expected);
    }

    // [ACC-74] [ACC-79]
    #[test]
    fn database_that_hangs_over_one_user_keeps_nobody_else_waiting() {
        let (release, held) = channel::<()>();
        let held = Mutex::new(held);
        let users = Users::new(move |uid| {
            if uid == 7 {
                let _ = held.lock().unwrap().recv();
            }
            Ok(Identity { uid, gid: uid, groups: Arc::from([]) })
        });
        let (send, receive) = channel();
        for _ in 0..3 {
            let send = send.clone();
            assert!(!users.ask(7, move |_| send.send(()).unwrap()).unwrap());
        }
        for uid in 100..120 {
            assert_eq!(asked(&users, uid).gid, uid);
        }
        assert_eq!(users.identity(7), None, "it is not known yet");
        drop(release);
        (0..3).for_each(|_| receive.recv().unwrap());
        assert_eq!(asked(&users, 7).gid, 7);
    }

    // [ACC-19]
    #[test]
    fn error_of_the_database_is_no_answer_and_is_not_kept() {
        let fails = Arc::new(AtomicBool::new(true));
        let state = Arc::clone(&fails);
        let users = Users::new(move |uid| match state.load(Ordering::Relaxed) {
            true => Err(io::ErrorKind::ConnectionRefused.into()),
            false => Ok(Identity { uid, gid: uid, groups: Arc::from([]) }),
        });
        let ask = |users: &Users| {
            let (tell, told) = channel();
            let is_known = users.ask(7, move |is_known| tell.send(is_known).unwrap()).unwrap();
            is_known || told.recv().unwrap()
        };
        assert!(!ask(&users) && users.identity(7).is_none());
        fails.store(false, Ordering::Relaxed);
        assert_eq!(asked(&users, 7).gid, 7, "it is asked again at once");
        // What was known once is not used for ever.
        let long_ago = Instant::now().checked_sub(KEPT_FOR).unwrap();
        users.inside.lock().known.get_mut(&7).unwrap().0 = long_ago;
        fails.store(true, Ordering::Relaxed);
        assert!(!ask(&users) && users.identity(7).is_none());
    }

    // [ACC-145]
    #[test]
    fn of_many_who_wait_for_one_user_the_latest_are_told() {
        let (release, held) = channel::<()>();
        let held = Mutex::new(held);
        let users = Users::new(move |uid| {
            let _ = held.lock().unwrap().recv();
            Ok(without_groups(uid))
        });
        let (tell, told) = channel();
        for number in 0..WAITING_MAX + 1 {
            let tell = tell.clone();
            assert!(!users.ask(7, move |_| tell.send(number).unwrap()).unwrap());
        }
        drop((release, tell));
        assert_eq!(told.iter().collect::<Vec<_>>(), (1..=WAITING_MAX).collect::<Vec<_>>());
    }

    /// Set in a process of its own for a test: the limit of memory is the whole process's.
    const OWN_PROCESS: &str = "DAFS_TEST_NO_THREADS";

    // [ACC-19]
    #[test]
    fn user_for_whom_no_thread_could_be_started_is_asked_about_again() {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        if std::env::var_os(OWN_PROCESS).is_none() {
            let name = "access::users::tests::user_for_whom_no_thread_could_be_started_is_asked_about_again";
            let output = std::process::Command::new(std::env::current_exe().unwrap())
                .args(["--exact", name])
                .env(OWN_PROCESS, "1")
                .output()
                .unwrap();
            let printed = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success() && printed.contains("1 passed"), "{printed}");
            return;
        }
        let users = Users::new(|uid| Ok(without_groups(uid)));
        let maximum = getrlimit(Resource::As).maximum;
        // A thread has no room for its stack.
        setrlimit(Resource::As, Rlimit { current: Some(1 << 20), maximum }).unwrap();
        let refused = users.ask(7, |_| panic!("it was refused"));
        setrlimit(Resource::As, Rlimit { current: maximum, maximum }).unwrap();
        assert!(refused.is_err(), "{refused:?}");
        assert_eq!(asked(&users, 7), without_groups(7));
    }
}
