//! `dafs ls`.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::Arc;

use dafs_client::{Attributes, Dir, DirEntry, Error, FileKind};

use crate::flags::Ls;
use crate::format::{self, Owners};
use crate::local_time;
use crate::output::Output;
use crate::remote::{Remotes, Target, join, sure};
use crate::report::{Failure, Failures, Result};
use crate::walk::{LinkTarget, Listed, Order, Step, Walk, Wanted};

pub(crate) fn run(flags: &Ls, remotes: &Remotes) -> Result<ExitCode> {
    let failures = Failures::default();
    let mut listing = Listing {
        flags,
        out: Output::new(),
        owners: Owners::default(),
        failures: &failures,
        now_seconds: local_time::now_seconds(),
        headed: flags.recursive || flags.urls.len() > 1,
        blocks: 0,
    };
    remotes.each(&flags.urls, &failures, |target| listing.operand(&target))?;
    listing.out.flush()?;
    Ok(failures.exit())
}

/// A line: a name and what is known of it.
struct Row {
    /// The URL of the directory that it is in, which all rows of that share; for programs alone.
    directory: Rc<[u8]>,
    name: Vec<u8>,
    attributes: Option<Attributes>,
    target: Option<Vec<u8>>,
}

/// Lines of a directory, whose symbolic links are still asked where they point to.
struct Rows {
    url: Rc<[u8]>,
    rows: Vec<Row>,
    /// Which row, or entry of those fetched ahead; in ascending order.
    ahead: VecDeque<LinkTarget>,
    asked: VecDeque<LinkTarget>,
}

impl Rows {
    /// For a directory with this URL; of entries that were fetched ahead what they point to has been asked already.
    fn new(url: Rc<[u8]>, ahead: Vec<LinkTarget>) -> Self {
        Self { url, rows: Vec::new(), ahead: ahead.into(), asked: VecDeque::new() }
    }

    /// The directory's entry with this number. Returns how many bytes more than its name it needs.
    fn add(
        &mut self,
        dir: &dyn Fn() -> dafs_client::Result<Dir>,
        number: usize,
        name: Vec<u8>,
        attributes: Option<Attributes>,
        with_target: bool,
    ) -> usize {
        while self.ahead.front().is_some_and(|(of, _)| *of < number) {
            self.ahead.pop_front();
        }
        let is_link = attributes.as_ref().is_some_and(|attributes| attributes.kind == FileKind::Symlink);
        let mut more = 0;
        if is_link && with_target {
            let asked = match self.ahead.front() {
                Some((of, _)) if *of == number => self.ahead.pop_front().map(|(_, asked)| asked),
                _ => dir().ok().map(|dir| dir.submit_read_link(Path::new(OsStr::from_bytes(&name)))),
            };
            self.asked.extend(asked.map(|asked| (self.rows.len(), asked)));
            if self.asked.len() > ASKED_MAX {
                more = self.answer();
            }
        }
        self.rows.push(Row { directory: Rc::clone(&self.url), name, attributes, target: None });
        more
    }

    /// Waits for the first that was asked. Returns the size of the answer.
    fn answer(&mut self) -> usize {
        let Some((at, asked)) = self.asked.pop_front() else { return 0 };
        let target = asked.wait().ok();
        let size = target.as_ref().map_or(0, Vec::len);
        self.rows[at].target = target;
        size
    }

    /// All lines so far, whole.
    fn take(&mut self) -> Vec<Row> {
        while !self.asked.is_empty() {
            self.answer();
        }
        std::mem::take(&mut self.rows)
    }
}

struct Listing<'a> {
    flags: &'a Ls,
    out: Output,
    owners: Owners,
    failures: &'a Failures,
    now_seconds: i64,
    /// Directories are listed under their names.
    headed: bool,
    /// Blocks of output so far: a blank line is between them.
    blocks: usize,
}

/// Bytes of a listing that is kept to be sorted: names, attributes, and directories to list.
const KEPT_SIZE_MAX: usize = 128 << 20;

/// Symbolic links of a directory that are asked at the same time where they point to.
const ASKED_MAX: usize = 64;

/// Lines that are written together where they are not sorted.
const UNSORTED_ROWS_MAX: usize = 64;

/// Widths of columns, for a listing that is not seen whole before it is written.
const STREAM_WIDTHS: Widths = Widths { links: 3, user: 8, group: 8, size: 10 };

#[derive(Clone, Copy, Default)]
struct Widths {
    links: usize,
    user: usize,
    group: usize,
    size: usize,
}

fn too_many(target: &Target, path: &Path, is_recursive: bool) -> Failure {
    let advice = if is_recursive { "list what is in it by itself" } else { "-U lists it as it comes" };
    let url = target.url_of(path).to_os_string();
    Failure::text(format!(
        "cannot list {}: it has more entries than {} MiB hold; {advice}",
        crate::quote::quoted(url.as_bytes()),
        KEPT_SIZE_MAX >> 20
    ))
}

impl Listing<'_> {
    fn operand(&mut self, target: &Target) -> Result<()> {
        // As ls: a link to a directory is followed, except in the long format.
        let follow = !self.flags.long && !self.flags.directory;
        let found = match follow {
            true => target.export.metadata(&target.path),
            false => target.export.symlink_metadata(&target.path),
        };
        let attributes = found.map_err(|error| target.failed("list", &error))?;
        if attributes.kind == FileKind::Directory && !self.flags.directory {
            return self.directories(target);
        }
        let root = target.export.root();
        let dir = || Ok(root.clone());
        let attributes =
            self.whole(target, &dir, Path::new(""), target.path.as_os_str().as_bytes(), attributes);
        let name = match target.path.as_os_str().is_empty() {
            true => b"/".to_vec(),
            false => target.path.as_os_str().as_bytes().to_vec(),
        };
        let url = self.url_for_programs(target, Path::new(""));
        let mut rows = Rows::new(url, Vec::new());
        rows.add(&dir, 0, name, Some(attributes), self.flags.long || self.flags.json);
        self.rows(&rows.take())
    }

    /// A directory, and with -R those below, depth first. Each of these is opened by its name in the one above.
    fn directories(&mut self, target: &Target) -> Result<()> {
        let failed = |error: Error| target.failed("list", &error);
        let look = || target.export.lookup(&target.path, true);
        let (dir, found) = sure(look(), look).map_err(failed)?;
        let (flags, inline) = (self.flags, target.session.agreed().read_inline_max);
        let wanted = Wanted {
            recursive: flags.recursive,
            hidden: flags.all,
            order: Order::Names,
            attributes: flags.long || flags.json || flags.recursive,
            link_targets: flags.long || flags.json,
        };
        let mut walk = Walk::new(dir, &found, inline, wanted);
        while let Some(Step { above, name, listed }) = walk.next() {
            let listed = match listed {
                Ok(listed) => self.directory(target, *listed, wanted, &mut walk),
                Err(error) => {
                    Err(target.failed_at("list", &join(&target.path, &above.path_of(&name)), &error))
                }
            };
            match listed {
                Err(unreached @ Failure::Unreached(_)) => return Err(unreached),
                listed => self.failures.keep_going(listed)?,
            }
        }
        Ok(())
    }

    fn directory(
        &mut self,
        target: &Target,
        mut listed: Listed,
        wanted: Wanted,
        walk: &mut Walk,
    ) -> Result<()> {
        let folder = Arc::clone(&listed.folder);
        let path = &join(&target.path, &folder.path());
        self.heading(target, path)?;
        let failed = |error| target.failed_at("list", path, &error);
        let rest = listed.rest(wanted.attributes);
        let rest_dir = rest.as_ref().map(|rest| rest.dir().clone());
        let dir = || match &rest_dir {
            Some(dir) => Ok(dir.clone()),
            None => folder.held(),
        };
        let entries = listed.entries.into_iter().map(Ok).chain(rest.into_iter().flatten());
        let mut rows = Rows::new(self.url_for_programs(target, path), listed.link_targets);
        let (mut kept, mut below) = (0, Vec::new());
        for (at, entry) in entries.enumerate() {
            let entry = entry.map_err(failed)?;
            if kept > KEPT_SIZE_MAX {
                return Err(too_many(target, path, self.flags.recursive));
            }
            if !self.flags.all && entry.name.first() == Some(&b'.') {
                continue;
            }
            let attributes = match wanted.attributes {
                true => self.entry_attributes(target, &dir, path, &entry)?,
                false => None,
            };
            if self.flags.recursive
                && listed.below.is_none()
                && attributes.as_ref().is_some_and(|attributes| attributes.kind == FileKind::Directory)
                && let Some(name) = crate::remote::entry_name(&entry.name)
            {
                kept += name.as_os_str().len() + size_of::<PathBuf>();
                below.push(name.to_owned());
            }
            let attributes =
                attributes.map(|attributes| self.whole(target, &dir, path, &entry.name, attributes));
            kept += size_of::<Row>() + entry.name.len();
            kept += rows.add(&dir, at, entry.name, attributes, wanted.link_targets);
            if self.flags.unsorted && rows.rows.len() >= UNSORTED_ROWS_MAX {
                kept = 0;
                rows.take().iter().try_for_each(|row| self.write_row(row, STREAM_WIDTHS))?;
            }
        }
        below.sort_unstable();
        walk.enter(&folder, below);
        let mut rows = rows.take();
        if self.flags.unsorted {
            return rows.iter().try_for_each(|row| self.write_row(row, STREAM_WIDTHS));
        }
        rows.sort_by(|one, other| one.name.cmp(&other.name));
        self.rows(&rows)
    }

    /// The attributes of an entry; it is shown without them where they cannot be had, as ls does.
    fn entry_attributes(
        &self,
        target: &Target,
        dir: &dyn Fn() -> dafs_client::Result<Dir>,
        path: &Path,
        entry: &DirEntry,
    ) -> Result<Option<Attributes>> {
        let found = match &entry.attributes {
            Some(attributes) => Ok(attributes.clone()),
            None => dir().and_then(|dir| dir.entry_metadata(entry)),
        };
        match found {
            Ok(attributes) => Ok(Some(attributes)),
            Err(error) if error.status().is_none() => Err(target.failed_at("list", path, &error)),
            // It vanished meanwhile.
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => {
                let own = join(path, Path::new(OsStr::from_bytes(&entry.name)));
                self.failures.report(&target.failed_at("look at", &own, &error));
                Ok(None)
            }
        }
    }

    /// The attributes of all of a file that lies over several servers; where they cannot be had, those that its name has.
    fn whole(
        &self,
        target: &Target,
        dir: &dyn Fn() -> dafs_client::Result<Dir>,
        path: &Path,
        name: &[u8],
        attributes: Attributes,
    ) -> Attributes {
        if let Ok(false) = target.volume.may_be_striped(&attributes) {
            return attributes;
        }
        let name = Path::new(OsStr::from_bytes(name));
        let whole = dir()
            .map_err(dafs_stripe::Error::from)
            .and_then(|dir| target.volume.whole_attributes(&dir, name, attributes.clone()));
        whole.unwrap_or_else(|error| {
            let at = target.at(join(path, name));
            self.failures.report(&at.failed_striped("look at", &error));
            attributes
        })
    }

    fn heading(&mut self, target: &Target, path: &Path) -> Result<()> {
        if !self.headed || self.flags.json {
            return Ok(());
        }
        if self.blocks > 0 {
            self.out.line("")?;
        }
        self.blocks += 1;
        let url = target.url_of(path).to_os_string();
        self.out.name(url.as_bytes())?;
        self.out.line(":")
    }

    fn url_for_programs(&self, target: &Target, directory: &Path) -> Rc<[u8]> {
        match self.flags.json {
            true => target.url_of(directory).to_os_string().into_vec().into(),
            false => Rc::default(),
        }
    }

    fn rows(&mut self, rows: &[Row]) -> Result<()> {
        let mut widths = Widths::default();
        if self.flags.long {
            for attributes in rows.iter().filter_map(|row| row.attributes.as_ref()) {
                widths.links = widths.links.max(attributes.links.to_string().len());
                widths.user = widths.user.max(self.owners.user(attributes.uid).len());
                widths.group = widths.group.max(self.owners.group(attributes.gid).len());
                widths.size = widths.size.max(format::size(attributes.size, self.flags.human_readable).len());
            }
        }
        rows.iter().try_for_each(|row| self.write_row(row, widths))
    }

    fn write_row(&mut self, row: &Row, widths: Widths) -> Result<()> {
        if self.flags.json {
            let mut value = match &row.attributes {
                Some(attributes) => format::attributes_json(&row.name, attributes, row.target.as_deref()),
                None => {
                    let mut value = serde_json::json!({});
                    format::put_name(&mut value, "name", &row.name);
                    value
                }
            };
            format::put_name(&mut value, "directory", &row.directory);
            return self.out.line(&value.to_string());
        }
        if self.flags.long {
            let line = self.long(row.attributes.as_ref(), widths);
            self.out.text(&line)?;
        }
        self.out.name(&row.name)?;
        if let Some(target) = &row.target {
            self.out.text(" -> ")?;
            self.out.name(target)?;
        }
        self.out.line("")
    }

    fn long(&mut self, attributes: Option<&Attributes>, widths: Widths) -> String {
        let Widths { links, user, group, size } = widths;
        let Some(attributes) = attributes else {
            return format!(
                "?????????? {:>links$} {:user$} {:group$} {:>size$} {:>12} ",
                "?", "?", "?", "?", "?"
            );
        };
        format!(
            "{} {:>links$} {:user$} {:group$} {:>size$} {} ",
            format::mode(attributes.kind, attributes.mode),
            attributes.links,
            self.owners.user(attributes.uid).to_owned(),
            self.owners.group(attributes.gid),
            format::size(attributes.size, self.flags.human_readable),
            local_time::short(attributes.mtime, self.now_seconds),
        )
    }
}
