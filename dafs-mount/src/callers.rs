//! Whom the kernel asks for, and the session that acts as each of them.
//!
//! A mount for its user alone has one session, that user's. A mount for all has one for each user and set of groups that has asked: the
//! server decides what each may do. Sessions that nobody has used for longest are closed when there are too many.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::rc::Rc;
use std::sync::Arc;

use dafs_client::{Completions, Config, Dir, Identity, OperationId, Session, Url};
use futures_channel::oneshot;
use rustix::event::{EventfdFlags, eventfd};

use crate::first::OnceAtATime;
use crate::kernel::errno::{Answer, Errno};
use crate::kernel::request::Header;

/// Sessions at most, unless more are in use.
const SESSIONS_MAX: usize = 64;

/// A user who asks, and the session that acts as him.
pub(crate) struct Caller {
    /// Tells it from every other, also from an earlier one of the same user.
    pub(crate) number: u64,
    /// `None`: whoever runs the mount.
    who: Option<Who>,
    pub(crate) session: Session,
    /// What is mounted, as he has it open.
    pub(crate) root: Dir,
    completions: Completions,
    used: Cell<u64>,
    /// It has ended, and whoever waited was told.
    over: Cell<bool>,
}

/// Names an operation that has ended, and its session.
pub(crate) type Ended = (u64, OperationId);

/// What a thread that connects brings.
type Connected = dafs_client::Result<(Session, Dir)>;

/// All of them.
pub(crate) struct Callers {
    url: Url,
    own: RefCell<Rc<Caller>>,
    /// Others have sessions of their own.
    for_all: bool,
    others: RefCell<HashMap<Who, Rc<Caller>>>,
    /// Have ended; whoever waited there is yet to be told.
    parting: RefCell<Vec<Rc<Caller>>>,
    /// For whom a session is being made.
    connecting: OnceAtATime<Who>,
    next: Cell<u64>,
    /// Becomes readable when a thread has connected.
    wake: Arc<OwnedFd>,
}

/// A user and his groups.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Who {
    uid: u32,
    gid: u32,
    groups: Vec<u32>,
}

/// Connects, mounts and opens what a URL names. Blocks.
pub(crate) fn connect(url: &Url, config: &Config) -> Connected {
    let session = Session::connect_url(url, config)?;
    let root = open(&session, url)?;
    Ok((session, root))
}

fn open(session: &Session, url: &Url) -> dafs_client::Result<Dir> {
    let name = String::from_utf8_lossy(url.export.as_deref().unwrap_or_default());
    let export = session.mount(&name)?;
    match url.path.is_empty() {
        true => Ok(export.root().clone()),
        false => export.open_dir(OsStr::from_bytes(&url.path)),
    }
}

impl Caller {
    fn new(number: u64, who: Option<Who>, (session, root): (Session, Dir)) -> dafs_client::Result<Rc<Self>> {
        let completions = session.completions()?;
        Ok(Rc::new(Self {
            number,
            who,
            session,
            root,
            completions,
            used: Cell::new(number),
            over: Cell::new(false),
        }))
    }

    /// Moves its session along, and tells what has ended; whether anything may have come of it.
    pub(crate) fn turn(&self, tell: &mut Vec<Ended>) -> bool {
        // What was in flight when it ended has ended too, and is told once.
        if self.completions.is_over() && self.over.replace(true) {
            return false;
        }
        let more = self.completions.turn();
        let before = tell.len();
        while let Some(id) = self.completions.next() {
            tell.push((self.number, id));
        }
        more || tell.len() > before
    }

    /// It has ended, and whoever waited was told: nothing will come of it.
    pub(crate) fn is_over(&self) -> bool {
        self.over.get()
    }

    /// Its session has ended for good: the server was away for too long.
    pub(crate) fn has_ended(&self) -> bool {
        self.completions.is_over()
    }

    /// It may be slept on; `false` where there is something to do first.
    pub(crate) fn arm(&self) -> bool {
        self.completions.arm().unwrap_or(false)
    }

    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.completions.as_fd()
    }
}

impl Callers {
    pub(crate) fn new(url: Url, for_all: bool, own: (Session, Dir)) -> dafs_client::Result<Self> {
        let own = Caller::new(1, None, own)?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|error| {
            dafs_client::Error::Invalid(format!("cannot make a descriptor to wake by: {error}"))
        })?;
        Ok(Self {
            url,
            own: RefCell::new(own),
            for_all,
            others: RefCell::default(),
            parting: RefCell::default(),
            connecting: OnceAtATime::default(),
            next: Cell::new(2),
            wake: Arc::new(wake),
        })
    }

    pub(crate) fn wake_descriptor(&self) -> &OwnedFd {
        &self.wake
    }

    /// The session of whoever runs the mount.
    pub(crate) fn own(&self) -> Rc<Caller> {
        Rc::clone(&self.own.borrow())
    }

    /// Every session there is.
    pub(crate) fn all(&self) -> Vec<Rc<Caller>> {
        let mut parting = self.parting.borrow_mut();
        parting.retain(|caller| !caller.is_over());
        let others = self.others.borrow();
        std::iter::once(self.own()).chain(others.values().chain(parting.iter()).cloned()).collect()
    }

    /// The session that acts as whoever asks.
    pub(crate) async fn of(&self, asks: &Header) -> Answer<Rc<Caller>> {
        if !self.for_all || asks.uid == 0 {
            return self.own_again().await;
        }
        self.of_user(Who { uid: asks.uid, gid: asks.gid, groups: groups_of(asks.pid) }).await
    }

    /// A session that acts as the same user.
    pub(crate) async fn again(&self, ended: &Caller) -> Answer<Rc<Caller>> {
        match &ended.who {
            None => self.own_again().await,
            Some(who) => self.of_user(who.clone()).await,
        }
    }

    async fn own_again(&self) -> Answer<Rc<Caller>> {
        match self.own() {
            own if own.has_ended() => self.connect_again().await,
            own => Ok(own),
        }
    }

    async fn of_user(&self, who: Who) -> Answer<Rc<Caller>> {
        loop {
            let known = self.others.borrow().get(&who).cloned();
            match known {
                Some(caller) if !caller.has_ended() => {
                    caller.used.set(self.number());
                    return Ok(caller);
                }
                Some(ended) => {
                    self.others.borrow_mut().remove(&who);
                    self.parting.borrow_mut().push(ended);
                }
                None => {}
            }
            let Some(_first) = self.connecting.first(&who).await else {
                // Whoever was first has connected, or has failed: that is seen above.
                continue;
            };
            let made = self.connect_as(&who).await;
            let made = made.inspect(|caller| drop(self.others.borrow_mut().insert(who, Rc::clone(caller))));
            self.close_unused();
            return made;
        }
    }

    async fn connect_as(&self, who: &Who) -> Answer<Rc<Caller>> {
        let (session, url) = (self.own().session.clone(), self.url.clone());
        let identity = Identity { uid: who.uid, gid: who.gid, groups: who.groups.clone() };
        let made = self.on_a_thread(move || {
            let session = session.connect_as(identity)?;
            let root = open(&session, &url)?;
            Ok((session, root))
        });
        self.made(Some(who.clone()), made.await)
    }

    /// The session of whoever runs the mount has ended for good: the server was away for too long.
    async fn connect_again(&self) -> Answer<Rc<Caller>> {
        let who = Who { uid: 0, gid: 0, groups: Vec::new() };
        if let Some(_first) = self.connecting.first(&who).await {
            let (session, url) = (self.own().session.clone(), self.url.clone());
            let made = self.on_a_thread(move || {
                let session = session.connect_again()?;
                let root = open(&session, &url)?;
                Ok((session, root))
            });
            let made = self.made(None, made.await);
            if let Ok(caller) = &made {
                *self.own.borrow_mut() = Rc::clone(caller);
            }
            return made;
        }
        match self.own() {
            own if own.has_ended() => Err(Errno::IO),
            own => Ok(own),
        }
    }

    fn made(&self, who: Option<Who>, made: Connected) -> Answer<Rc<Caller>> {
        let failed = |error: dafs_client::Error| {
            tracing::warn!("cannot open a session with the server: {error}");
            match error {
                // Nobody is told of an export that is not his.
                dafs_client::Error::Status { .. } => Errno::ACCESS,
                error => Errno::from(&error),
            }
        };
        Caller::new(self.number(), who, made.map_err(failed)?).map_err(failed)
    }

    /// Runs something that blocks, without blocking.
    async fn on_a_thread(&self, work: impl FnOnce() -> Connected + Send + 'static) -> Connected {
        let (sender, receiver) = oneshot::channel();
        let wake = Arc::clone(&self.wake);
        let thread = std::thread::Builder::new().name("dafs-connect".into()).spawn(move || {
            let _ = sender.send(work());
            let _ = rustix::io::write(&wake, &1u64.to_ne_bytes());
        });
        let failed =
            |cause: String| dafs_client::Error::Invalid(format!("cannot connect on a thread: {cause}"));
        match thread {
            Ok(_) => receiver.await.map_err(|_| failed("it ended early".into()))?,
            Err(error) => Err(failed(error.to_string())),
        }
    }

    fn number(&self) -> u64 {
        let number = self.next.get();
        self.next.set(number + 1);
        number
    }

    /// Closes sessions that nobody uses, where there are too many.
    fn close_unused(&self) {
        let mut others = self.others.borrow_mut();
        while others.len() > SESSIONS_MAX {
            let unused = others.iter().filter(|(_, caller)| Rc::strong_count(caller) == 1);
            let Some(oldest) = unused.min_by_key(|(_, caller)| caller.used.get()).map(|(who, _)| who.clone())
            else {
                return;
            };
            others.remove(&oldest);
        }
    }
}

/// The supplementary groups of a process; none of one that has ended, or is of another namespace.
fn groups_of(pid: u32) -> Vec<u32> {
    if pid == 0 {
        return Vec::new();
    }
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let groups = status.lines().find_map(|line| line.strip_prefix("Groups:")).unwrap_or_default();
    groups.split_whitespace().filter_map(|group| group.parse().ok()).collect()
}
