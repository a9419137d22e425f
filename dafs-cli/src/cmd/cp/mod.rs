//! `dafs cp`: what is copied where. The copying itself is in `engine`.

mod account;
mod at;
mod claims;
mod directories;
mod draft;
mod engine;
mod extras;
mod group;
mod item;
mod large;
mod local;
mod meta;
mod names;
mod open_file;
mod pump;
mod same;
mod sink;
mod tally;
mod tree_root;
mod watch;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use dafs_client::{FileKind, Session};

use self::account::Account;
use self::claims::Claims;
use self::draft::Drafts;
use self::engine::Engine;
use self::item::{Item, Options, Roots};
use self::meta::{Cause, KeepOwner, Meta};
use self::tally::Tally;
use self::tree_root::TreeRoot;
use crate::flags::Cp;
use crate::remote::{Remotes, is_remote, join};
use crate::report::{Failure, Failures, INTERRUPTED, Result, say};
use crate::signals::Interrupt;

/// Jobs that are chosen for a server nearby, and for one far away.
const JOBS_MIN: u16 = 4;
const JOBS_MAX: u16 = 32;

pub(crate) fn run(flags: &Cp, remotes: &Remotes, verbose: bool) -> Result<ExitCode> {
    let flags = &flags.clone().with_archive();
    let Some((destination, sources @ [_, ..])) = flags.operands.split_last() else {
        return Err(Failure::usage("give what to copy, and where to: dafs cp SOURCE... DESTINATION"));
    };
    if !flags.operands.iter().any(|operand| is_remote(operand)) {
        return Err(Failure::usage(
            "cannot copy: neither side is on a server; use cp, or write a URL such as dafs://HOST/EXPORT/PATH",
        ));
    }
    raise_open_files_limit();
    let failures = Arc::new(Failures::default());
    let plan = Plan::new(destination, flags, remotes)?;
    let mut items = Vec::new();
    for source in sources {
        match plan.item(source, flags, remotes) {
            Ok(item) => items.push(item),
            Err(failure) => failures.keep_going(Err(failure))?,
        }
    }
    if items.is_empty() {
        return Ok(failures.exit());
    }
    let tally = Tally::new(!flags.quiet);
    failures.print_above(tally.bar().clone());
    let jobs = flags.jobs.unwrap_or_else(|| jobs_for(&plan.sessions(&items)));
    let options = Options::new(!flags.no_sync, flags.preserve, jobs);
    // Not to keep the sessions: they shall end with the command.
    let running: Arc<OnceLock<Weak<Engine>>> = Arc::default();
    let interrupt = Interrupt::catch({
        let running = Arc::clone(&running);
        move |patience| {
            if let Some(engine) = running.get().and_then(Weak::upgrade) {
                engine.account.say_incomplete(patience);
            }
        }
    });
    let again = plan.again(&items, flags);
    let drafts = Arc::clone(&plan.drafts);
    let account = Account::new(options, tally, Arc::clone(&failures), interrupt.clone(), drafts);
    let engine = Arc::new(Engine::new(account));
    let _ = running.set(Arc::downgrade(&engine));
    watch::beside(&engine.account, plan.sessions(&items), || engine.run(&items));
    engine.account.tally.bar().finish_and_clear();
    engine.account.drafts.left().iter().for_each(|left| say(left));
    if plan.keep_owner.is_refused() {
        say("some copies do not keep owner and set-id bits: you may not change them at the destination");
    }
    if plan.keep_owner.lacks_extras() {
        say(
            "access control lists and extended attributes were not kept of all copies: the destination does not take them; \
             no group may do more with these copies than with the originals",
        );
    }
    if plan.keep_owner.lacks_attributes() {
        say("some copies do not keep modes and times: you may not change them at the destination");
    }
    let tell = verbose || interrupt.is_set() || failures.count() > 0 || is_terminal();
    if tell && !flags.quiet {
        crate::report::line(&engine.account.tally.summary(failures.count()));
    }
    if interrupt.is_set() {
        say(&format!(
            "interrupted: complete copies remain, the rest is missing; {again} copies everything again"
        ));
        return Ok(ExitCode::from(INTERRUPTED));
    }
    if engine.account.is_over() {
        say(&format!("the rest was not copied: when the server is back, {again} copies everything again"));
    }
    Ok(failures.exit())
}

/// As many jobs as keep the lines to servers busy.
fn jobs_for(sessions: &[&Session]) -> u16 {
    // The shorter of two: the first may come into a busy moment.
    let round_trip = |session: &&Session| session.ping().ok().min(session.ping().ok());
    jobs_over(sessions.iter().filter_map(round_trip).max().unwrap_or_default())
}

/// A job waits for most of its time, and the further away the server is the longer.
fn jobs_over(round_trip: Duration) -> u16 {
    u16::try_from(round_trip.as_micros() / 60).unwrap_or(JOBS_MAX).clamp(JOBS_MIN, JOBS_MAX)
}

/// Each job has many files open. Where the limit stays as it was, errors say so.
fn raise_open_files_limit() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let raised = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(_, maximum)| setrlimit(Resource::RLIMIT_NOFILE, maximum, maximum));
    if let Err(error) = raised {
        tracing::debug!("cannot raise the limit of open files: {error}");
    }
}

fn is_terminal() -> bool {
    use std::io::IsTerminal;
    std::io::stderr().is_terminal()
}

/// Where things go.
struct Plan {
    place: TreeRoot,
    /// What is there already, links followed.
    existing: Option<Meta>,
    /// It was written with a slash at its end: only a directory is meant.
    slash: bool,
    keep_owner: KeepOwner,
    claims: Arc<Claims>,
    drafts: Arc<Drafts>,
}

impl Plan {
    fn new(destination: &OsStr, flags: &Cp, remotes: &Remotes) -> Result<Self> {
        let place = place(destination, remotes)?;
        let existing = match place.metadata(true) {
            Ok(meta) => Some(meta),
            Err(cause) if cause.is_not_found() => None,
            Err(cause) => return Err(place.failed("look at", Path::new(""), &cause)),
        };
        let keep_owner =
            KeepOwner::new(flags.preserve && !flags.no_owner && may_give_files_away(&place)?, flags.preserve);
        let slash = destination.as_bytes().ends_with(b"/");
        let (claims, drafts) = (Arc::<Claims>::default(), Arc::new(Drafts::new(!flags.no_sync)));
        let plan = Self { place, existing, slash, keep_owner, claims, drafts };
        if !plan.is_directory() && (flags.operands.len() > 2 || plan.slash && plan.existing.is_some()) {
            return Err(plan.no_directory());
        }
        Ok(plan)
    }

    fn no_directory(&self) -> Failure {
        Failure::usage(format!(
            "cannot copy to {}: not a directory; several sources, and a destination that ends with a slash, need one",
            self.place.shown(Path::new(""))
        ))
    }

    /// The sessions that are copied over.
    fn sessions<'a>(&'a self, items: &'a [Item]) -> Vec<&'a Session> {
        let places = items.iter().map(|item| &item.roots.source).chain([&self.place]);
        let mut sessions: Vec<&Session> = Vec::new();
        for place in places {
            if let TreeRoot::Remote(target) = place
                && !sessions.iter().any(|known| known.agreed().session == target.session.agreed().session)
            {
                sessions.push(&target.session);
            }
        }
        sessions
    }

    fn is_directory(&self) -> bool {
        self.existing.as_ref().is_some_and(|meta| meta.kind == FileKind::Directory)
    }

    /// What copies all of it once more. A directory that was copied to a new name is there now: the same command would copy into it.
    fn again(&self, items: &[Item], flags: &Cp) -> String {
        let is_new_tree = self.existing.is_none()
            && items.first().is_some_and(|item| {
                item.meta.kind == FileKind::Directory && !base_name(&item.roots.source).as_os_str().is_empty()
            });
        match (is_new_tree, flags.operands.as_slice()) {
            // A new name has one source.
            (true, [source, _]) => {
                let words: Vec<_> = std::env::args_os().skip(1).collect();
                format!("`dafs {}`", with_content_of(source, &words))
            }
            _ => "the same command".into(),
        }
    }

    /// What a source becomes.
    fn item(&self, operand: &OsStr, flags: &Cp, remotes: &Remotes) -> Result<Item> {
        let source = place(operand, remotes)?;
        let top = Path::new("");
        if let (TreeRoot::Local(_), TreeRoot::Local(_)) = (&source, &self.place) {
            return Err(Failure::usage(format!(
                "cannot copy {}: its destination is on this machine too; use cp",
                source.shown(top)
            )));
        }
        // As cp: with -r a link is copied as a link.
        let meta =
            source.metadata(!flags.recursive).map_err(|cause| source.failed("look at", top, &cause))?;
        if meta.kind == FileKind::Directory && !flags.recursive {
            return Err(Failure::text(format!(
                "cannot copy {}: is a directory; copy it with -r",
                source.shown(top)
            )));
        }
        if self.slash && self.existing.is_none() && meta.kind != FileKind::Directory {
            return Err(self.no_directory());
        }
        let destination = match self.is_directory() {
            true => self.place.below(&base_name(&source)),
            false => self.place.clone(),
        };
        let one_session = same::refuse_copies_into_themselves(&source, &destination, &meta)?;
        let keep_owner = self.keep_owner.clone();
        let follow = !flags.recursive;
        let (claims, drafts) = (Arc::clone(&self.claims), Arc::clone(&self.drafts));
        let (copy, in_place, striping) = (OnceLock::new(), flags.inplace, flags.striping.wanted());
        let roots =
            Roots { source, destination, keep_owner, one_session, copy, striping, in_place, claims, drafts };
        let roots = Arc::new(roots);
        Ok(Item::top(roots, meta, follow))
    }
}

/// The words of a command, for a shell, with the content of a source in its place.
fn with_content_of(source: &OsStr, words: &[OsString]) -> String {
    // The last but for the destination: a flag may have the same value.
    let place = words.iter().rposition(|word| word == source);
    let shown = words.iter().enumerate().map(|(at, word)| match Some(at) == place {
        false => crate::quote::shown(word.as_bytes()),
        true => crate::quote::shown(join(Path::new(source), Path::new(".")).as_os_str().as_bytes()),
    });
    shown.collect::<Vec<_>>().join(" ")
}

impl TreeRoot {
    /// A name below this root as a root.
    fn below(&self, name: &Path) -> Self {
        match self {
            Self::Local(root) => Self::Local(join(root, name)),
            Self::Remote(target) => Self::Remote(target.at(join(&target.path, name))),
        }
    }
}

fn place(operand: &OsStr, remotes: &Remotes) -> Result<TreeRoot> {
    match is_remote(operand) {
        true => Ok(TreeRoot::Remote(remotes.target(operand)?)),
        false if operand.is_empty() => {
            Err(Failure::usage("cannot use an empty path: it names nothing; for this directory write ."))
        }
        false => Ok(TreeRoot::Local(PathBuf::from(operand))),
    }
}

/// The name that a source gets in a directory: its last part; nothing for `.`, `..` and `/`, whose content goes there
/// itself, as with cp; the export's name for its root.
fn base_name(source: &TreeRoot) -> PathBuf {
    let path = match source {
        TreeRoot::Remote(target) if target.path.as_os_str().is_empty() => return target.export.name().into(),
        TreeRoot::Remote(target) => target.path.as_os_str(),
        TreeRoot::Local(path) => path.as_os_str(),
    };
    // Not by its components: those of `a/.` are those of `a`.
    let bytes = path.as_bytes();
    let end = bytes.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
    let begin = bytes[..end].iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
    match &bytes[begin..end] {
        b"." | b".." => PathBuf::new(),
        name => OsStr::from_bytes(name).into(),
    }
}

/// Only root can give files to others: on a server, when it lets this client act as root, which an export may forbid all the same.
fn may_give_files_away(destination: &TreeRoot) -> Result<bool> {
    match destination {
        TreeRoot::Local(_) => Ok(rustix::process::geteuid().is_root()),
        TreeRoot::Remote(target) => match target.session.limits() {
            Ok(limits) => Ok(limits.uid == 0),
            Err(error) => {
                Err(destination.failed("ask for the limits of", Path::new(""), &Cause::Client(error)))
            }
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // [CMD-107]
    #[test]
    fn more_jobs_copy_over_a_longer_line() {
        let jobs = |micros| jobs_over(Duration::from_micros(micros));
        assert_eq!([0, 299, 300, 1000, 1919, 1920, 1 << 50].map(jobs), [4, 4, 5, 16, 31, 32, 32]);
        // As many files are open with any number of them.
        let open = |jobs: u16| usize::from(jobs) * Options::new(true, false, jobs).group_count;
        assert_eq!([1, 4, 5, 32, 64].map(open), [64, 256, 255, 256, 256]);
    }

    // [CMD-42]
    #[test]
    fn suggested_copy_command_has_all_flags_and_copies_content() {
        for (source, words, expected) in [
            ("src", "cp -r src URL", "cp -r src/. URL"),
            ("src/", "--timeout 3 cp -rp src/ URL --jobs 4", "--timeout 3 cp -rp src/. URL --jobs 4"),
            ("k", "cp --key-file k -r -- k URL", "cp --key-file k -r -- k/. URL"),
            ("a'b", "cp -r a'b URL", r"cp -r 'a'\''b/.' URL"),
            ("dafs://h/e/t", "cp -r dafs://h/e/t d", "cp -r dafs://h/e/t/. d"),
        ] {
            let words: Vec<OsString> = words.split(' ').map(OsString::from).collect();
            assert_eq!(with_content_of(OsStr::new(source), &words), expected);
        }
    }
}
