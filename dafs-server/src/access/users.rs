//! Groups of users, from the system's user database. That may be a directory service far away: threads ask it, and the loop never does.

use std::collections::{HashMap, VecDeque};
use std::ffi::CString;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

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

type LookUp = Box<dyn Fn(u32) -> Identity + Send + Sync>;
type Then = Box<dyn FnOnce() + Send>;

/// The user database, with its answers kept for a minute.
pub(super) struct Users {
    inside: Arc<Inside>,
}

struct Inside {
    look_up: LookUp,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
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
    fn new(look_up: impl Fn(u32) -> Identity + Send + Sync + 'static) -> Self {
        Self { inside: Arc::new(Inside { look_up: Box::new(look_up), state: Mutex::default() }) }
    }

    /// Whether the user is known now. If not, a thread asks the database and calls `then`; of many, only the latest. Not blocking.
    ///
    /// # Errors
    /// There is no thread to ask with.
    pub(super) fn ask(&self, uid: u32, then: impl FnOnce() + Send + 'static) -> io::Result<bool> {
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

    /// The user with its groups, as last known. One that the database does not know, or was not asked about, has the group nobody and
    /// no others. Not blocking.
    pub(super) fn identity(&self, uid: u32) -> Identity {
        let known = self.inside.lock().known.get(&uid).map(|(_, identity)| identity.clone());
        known.unwrap_or_else(|| without_groups(uid))
    }
}

impl Inside {
    /// Every step leaves the state whole.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn answer_all(&self) {
        let mut state = self.lock();
        while let Some(uid) = state.queue.pop_front() {
            drop(state);
            let identity = (self.look_up)(uid);
            state = self.lock();
            if state.known.len() >= KEPT_MAX {
                state.known.clear();
            }
            state.known.insert(uid, (Instant::now(), identity));
            let waiting = state.asked.remove(&uid).unwrap_or_default();
            drop(state);
            waiting.into_iter().for_each(|then| then());
            state = self.lock();
        }
        state.threads -= 1;
    }
}

fn without_groups(uid: u32) -> Identity {
    Identity { uid, gid: NOBODY, groups: Arc::from([]) }
}

fn look_up(uid: u32) -> Identity {
    let user = match User::from_uid(Uid::from_raw(uid)) {
        Ok(user) => user,
        Err(error) => {
            tracing::warn!(uid, %error, "cannot look up a user in the user database; the client acts without groups");
            None
        }
    };
    let Some(user) = user else { return without_groups(uid) };
    let groups = CString::new(user.name).ok().and_then(|name| getgrouplist(&name, user.gid).ok());
    let groups = groups.unwrap_or_default().into_iter().map(Gid::as_raw);
    Identity { uid, gid: user.gid.as_raw(), groups: groups.collect() }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn database_is_asked_by_a_bounded_number_of_threads_and_answers_are_bounded() {
        let (begun, begins) = channel();
        let (end, ends) = channel::<()>();
        let ends = Mutex::new(ends);
        let users = Users::new(move |uid| {
            begun.send(uid).unwrap();
            // Until all may go on.
            let _ = ends.lock().unwrap().recv();
            without_groups(uid)
        });
        let (tell, told) = channel();
        let count = 1025;
        for uid in 0..count {
            let tell = tell.clone();
            assert!(!users.ask(uid, move || tell.send(uid).unwrap()).unwrap());
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
        if !users.ask(uid, move || send.send(()).unwrap()).unwrap() {
            receive.recv().unwrap();
        }
        assert!(users.ask(uid, || panic!("it is known")).unwrap());
        users.identity(uid)
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
        assert_eq!(users.identity(3_999_999_999), expected);
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
            Identity { uid, gid: uid, groups: Arc::from([]) }
        });
        let (send, receive) = channel();
        for _ in 0..3 {
            let send = send.clone();
            assert!(!users.ask(7, move || send.send(()).unwrap()).unwrap());
        }
        for uid in 100..120 {
            assert_eq!(asked(&users, uid).gid, uid);
        }
        assert_eq!(users.identity(7).gid, NOBODY, "it is not known yet");
        drop(release);
        (0..3).for_each(|_| receive.recv().unwrap());
        assert_eq!(asked(&users, 7).gid, 7);
    }

    // [ACC-145]
    #[test]
    fn of_many_who_wait_for_one_user_the_latest_are_told() {
        let (release, held) = channel::<()>();
        let held = Mutex::new(held);
        let users = Users::new(move |uid| {
            let _ = held.lock().unwrap().recv();
            without_groups(uid)
        });
        let (tell, told) = channel();
        for number in 0..WAITING_MAX + 1 {
            let tell = tell.clone();
            assert!(!users.ask(7, move || tell.send(number).unwrap()).unwrap());
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
        let users = Users::new(without_groups);
        let maximum = getrlimit(Resource::As).maximum;
        // A thread has no room for its stack.
        setrlimit(Resource::As, Rlimit { current: Some(1 << 20), maximum }).unwrap();
        let refused = users.ask(7, || panic!("it was refused"));
        setrlimit(Resource::As, Rlimit { current: maximum, maximum }).unwrap();
        assert!(refused.is_err(), "{refused:?}");
        assert_eq!(asked(&users, 7), without_groups(7));
    }
}
