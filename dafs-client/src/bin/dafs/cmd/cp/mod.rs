//! `dafs cp`: what is copied where. The copying itself is in `engine`.

mod batch;
mod directories;
mod engine;
mod large;
mod local;
mod open_file;
mod place;
mod tally;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use dafs_client::FileKind;

use self::engine::{Engine, Item, Options, Roots};
use self::place::{Cause, Meta, Place};
use self::tally::Tally;
use crate::flags::Cp;
use crate::progress::Progress;
use crate::remote::{Remotes, is_remote, join, normal};
use crate::report::{Failure, Failures, INTERRUPTED, Result};
use crate::signals::Interrupt;

pub(crate) fn run(flags: &Cp, remotes: &Remotes, verbose: bool) -> Result<ExitCode> {
    let Some((destination, sources)) = flags.operands.split_last() else {
        return Err(Failure::usage("give what to copy and where to"));
    };
    if !flags.operands.iter().any(|operand| is_remote(operand)) {
        return Err(Failure::usage(
            "neither side is on a server: use cp, or write a URL such as dafs://HOST/EXPORT/PATH",
        ));
    }
    let failures = Arc::new(Failures::default());
    let plan = Plan::new(destination, sources.len(), remotes)?;
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
    let progress = Arc::new(Progress::new(!flags.quiet));
    failures.print_above(progress.bar());
    let options = Options { sync: !flags.no_sync, jobs: flags.jobs };
    let interrupt = Interrupt::catch();
    let engine =
        Engine::new(options, Tally::new(Arc::clone(&progress)), Arc::clone(&failures), interrupt.clone());
    engine.run(items);
    progress.finish();
    let tell = verbose || interrupt.is_set() || failures.count() > 0 || is_terminal();
    if tell && !flags.quiet {
        eprintln!("{}", engine.tally.summary(failures.count()));
    }
    if interrupt.is_set() {
        eprintln!(
            "dafs: interrupted: what was copied stays, the rest is missing; the same command copies all of it again"
        );
        return Ok(ExitCode::from(INTERRUPTED));
    }
    if engine.is_over() {
        eprintln!("dafs: the rest was not copied: run the command again when the server is back");
    }
    Ok(failures.exit())
}

fn is_terminal() -> bool {
    use std::io::IsTerminal;
    std::io::stderr().is_terminal()
}

/// Where things go.
struct Plan {
    place: Place,
    /// What is there already, links followed.
    existing: Option<Meta>,
}

impl Plan {
    fn new(destination: &OsStr, sources: usize, remotes: &Remotes) -> Result<Self> {
        let place = place(destination, remotes)?;
        let existing = match place.metadata(Path::new(""), true) {
            Ok(meta) => Some(meta),
            Err(cause) if cause.is_not_found() => None,
            Err(cause) => return Err(place.failed("look at", Path::new(""), &cause)),
        };
        let plan = Self { place, existing };
        if !plan.is_directory()
            && (sources > 1 || destination.as_bytes().ends_with(b"/") && plan.existing.is_some())
        {
            return Err(Failure::usage(format!(
                "{} is no directory: several sources, and a destination that ends with a slash, need one",
                plan.place.shown(Path::new(""))
            )));
        }
        Ok(plan)
    }

    fn is_directory(&self) -> bool {
        self.existing.as_ref().is_some_and(|meta| meta.kind == FileKind::Directory)
    }

    /// What a source becomes.
    fn item(&self, operand: &OsStr, flags: &Cp, remotes: &Remotes) -> Result<Item> {
        let source = place(operand, remotes)?;
        let top = Path::new("");
        if let (Place::Local(_), Place::Local(_)) = (&source, &self.place) {
            return Err(Failure::usage(format!(
                "{} and its destination are both on this machine: use cp",
                source.shown(top)
            )));
        }
        // As cp: with -r a link is copied as a link.
        let meta =
            source.metadata(top, !flags.recursive).map_err(|cause| source.failed("look at", top, &cause))?;
        if meta.kind == FileKind::Directory && !flags.recursive {
            return Err(Failure::text(format!("{} is a directory: copy it with -r", source.shown(top))));
        }
        let destination = match self.is_directory() {
            true => self.place.below(&base_name(&source)),
            false => self.place.clone(),
        };
        let one_session = refuse_copies_into_themselves(&source, &destination, &meta)?;
        let keep_owner = !flags.no_owner && may_give_files_away(&destination)?;
        let follow = !flags.recursive;
        let roots = Arc::new(Roots { source, destination, keep_owner, one_session });
        Ok(Item { roots, path: PathBuf::new(), meta, follow })
    }
}

impl Place {
    /// A name below this root as a root.
    fn below(&self, name: &Path) -> Self {
        match self {
            Self::Local(root) => Self::Local(join(root, name)),
            Self::Remote(target) => Self::Remote(target.at(join(&target.path, name))),
        }
    }
}

fn place(operand: &OsStr, remotes: &Remotes) -> Result<Place> {
    match is_remote(operand) {
        true => Ok(Place::Remote(remotes.target(operand)?)),
        false if operand.is_empty() => {
            Err(Failure::usage("an empty path names nothing: for this directory write ."))
        }
        false => Ok(Place::Local(PathBuf::from(operand))),
    }
}

/// The name that a source gets in a directory: its last part; nothing for `.`, `..` and `/`, whose content goes there
/// itself, as with cp; the export's name for its root.
fn base_name(source: &Place) -> PathBuf {
    let path = match source {
        Place::Remote(target) if target.path.as_os_str().is_empty() => return target.export.name().into(),
        Place::Remote(target) => target.path.as_os_str(),
        Place::Local(path) => path.as_os_str(),
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

/// Within one session, copying a file onto itself would empty it, and a directory into itself would never end.
/// Answers whether it is one session.
fn refuse_copies_into_themselves(source: &Place, destination: &Place, meta: &Meta) -> Result<bool> {
    let (Place::Remote(from), Place::Remote(to)) = (source, destination) else { return Ok(false) };
    let top = Path::new("");
    let one_session = from.session.agreed().session == to.session.agreed().session;
    if !one_session {
        return Ok(false);
    }
    if let Ok(existing) = destination.metadata(top, true)
        && existing.id == meta.id
    {
        return Err(Failure::text(format!(
            "{} and {} are the same file",
            source.shown(top),
            destination.shown(top)
        )));
    }
    let inside = from.export.name() == to.export.name() && normal(&to.path).starts_with(normal(&from.path));
    if meta.kind == FileKind::Directory && inside {
        return Err(Failure::text(format!(
            "cannot copy {} into itself: {}",
            source.shown(top),
            destination.shown(top)
        )));
    }
    Ok(true)
}

/// Only root can give files to others: on a server, when it lets this client act as root.
fn may_give_files_away(destination: &Place) -> Result<bool> {
    match destination {
        Place::Local(_) => Ok(nix::unistd::geteuid().is_root()),
        Place::Remote(target) => match target.session.limits() {
            Ok(limits) => Ok(limits.uid == 0),
            Err(error) => {
                Err(destination.failed("ask for the limits of", Path::new(""), &Cause::Client(error)))
            }
        },
    }
}
