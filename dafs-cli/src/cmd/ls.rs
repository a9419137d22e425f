//! `dafs ls`.

use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::Arc;

use dafs_client::{Attributes, Dir, Error, FileKind};

use crate::flags::Ls;
use crate::folder::{Folder, Held};
use crate::format::{self, Owners};
use crate::local_time;
use crate::output::Output;
use crate::remote::{Remotes, Target, join, sure};
use crate::report::{Failure, Failures, Result};

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

/// Directories that are held open on the server.
const HELD_MAX: usize = 64;

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
        let attributes =
            self.whole(target, root, Path::new(""), target.path.as_os_str().as_bytes(), attributes);
        let name = match target.path.as_os_str().is_empty() {
            true => b"/".to_vec(),
            false => target.path.as_os_str().as_bytes().to_vec(),
        };
        let url = self.url_for_programs(target, Path::new(""));
        let row = self.row((target.export.root(), &url), name, Some(attributes));
        self.rows(vec![row])
    }

    /// A directory, and with -R those below, depth first. Each of these is opened by its name in the one above.
    fn directories(&mut self, target: &Target) -> Result<()> {
        let failed = |error: Error| target.failed("list", &error);
        let look = || target.export.lookup(&target.path, true);
        let (dir, found) = sure(look(), look).map_err(failed)?;
        let top = Folder::top(dir, (found.fs_id, found.file_id), HELD_MAX);
        let mut stack = vec![(None, PathBuf::new())];
        while let Some((above, name)) = stack.pop() {
            let mut below = Vec::new();
            let listed = match &above {
                None => self.directory(target, &top, &mut below).map(|()| Some(Arc::clone(&top))),
                Some(above) => self.directory_below(target, above, &name, &mut below),
            };
            match listed {
                Err(unreached @ Failure::Unreached(_)) => return Err(unreached),
                Ok(Some(folder)) => {
                    below.sort_by(|one: &PathBuf, other| other.cmp(one));
                    stack.extend(below.into_iter().map(|name| (Some(Arc::clone(&folder)), name)));
                }
                listed => self.failures.keep_going(listed.map(drop))?,
            }
        }
        Ok(())
    }

    /// A directory in another; `None` where it is not there any more.
    fn directory_below(
        &mut self,
        target: &Target,
        above: &Arc<Folder<Dir>>,
        name: &Path,
        below: &mut Vec<PathBuf>,
    ) -> Result<Option<Arc<Folder<Dir>>>> {
        let opened = above.held().and_then(|dir| dir.directory(name));
        let (dir, id) = opened.map_err(|error| {
            let path = join(&target.path, &above.path_of(name));
            target.failed_at("list", &path, &error)
        })?;
        let folder = above.below(name, dir, id);
        self.directory(target, &folder, below)?;
        Ok(Some(folder))
    }

    fn directory(
        &mut self,
        target: &Target,
        folder: &Arc<Folder<Dir>>,
        below: &mut Vec<PathBuf>,
    ) -> Result<()> {
        let path = &join(&target.path, &folder.path());
        self.heading(target, path)?;
        let failed = |error| target.failed_at("list", path, &error);
        let wants_attributes = self.flags.long || self.flags.json || self.flags.recursive;
        let dir = folder.held().and_then(|held| held.open_dir_no_follow("")).map_err(failed)?;
        let entries = dir.entries(wants_attributes);
        let url = self.url_for_programs(target, path);
        let mut rows = Vec::new();
        let mut kept = 0;
        for entry in entries {
            let entry = entry.map_err(failed)?;
            if kept > KEPT_SIZE_MAX {
                return Err(too_many(target, path, self.flags.recursive));
            }
            if !self.flags.all && entry.name.first() == Some(&b'.') {
                continue;
            }
            // Shown without attributes where they cannot be had, as ls does.
            let attributes = match wants_attributes.then(|| dir.entry_metadata(&entry)) {
                Some(Ok(attributes)) => Some(attributes),
                Some(Err(error)) if error.status().is_none() => return Err(failed(error)),
                Some(Err(error)) if !error.is_not_found() => {
                    let own = join(path, Path::new(OsStr::from_bytes(&entry.name)));
                    self.failures.report(&target.failed_at("look at", &own, &error));
                    None
                }
                // Not wanted, or it vanished meanwhile.
                _ => None,
            };
            if self.flags.recursive
                && attributes.as_ref().is_some_and(|attributes| attributes.kind == FileKind::Directory)
                && let Some(name) = crate::remote::entry_name(&entry.name)
            {
                kept += name.as_os_str().len() + size_of::<PathBuf>();
                below.push(name.to_owned());
            }
            let attributes =
                attributes.map(|attributes| self.whole(target, &dir, path, &entry.name, attributes));
            let row = self.row((&dir, &url), entry.name, attributes);
            match self.flags.unsorted {
                true => self.write_row(&row, STREAM_WIDTHS)?,
                false => {
                    kept += size_of::<Row>() + row.name.len() + row.target.as_ref().map_or(0, Vec::len);
                    rows.push(row);
                }
            }
        }
        rows.sort_by(|one, other| one.name.cmp(&other.name));
        self.rows(rows)
    }

    /// The attributes of all of a file that lies over several servers; where they cannot be had, those that its name has.
    fn whole(
        &self,
        target: &Target,
        dir: &Dir,
        path: &Path,
        name: &[u8],
        attributes: Attributes,
    ) -> Attributes {
        let name = Path::new(OsStr::from_bytes(name));
        target.volume.whole_attributes(dir, name, attributes.clone()).unwrap_or_else(|error| {
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

    fn row(
        &mut self,
        (directory, url): (&Dir, &Rc<[u8]>),
        name: Vec<u8>,
        attributes: Option<Attributes>,
    ) -> Row {
        let is_link = attributes.as_ref().is_some_and(|attributes| attributes.kind == FileKind::Symlink);
        let points_to = match is_link && (self.flags.long || self.flags.json) {
            true => directory.read_link(Path::new(OsStr::from_bytes(&name))).ok(),
            false => None,
        };
        Row { directory: Rc::clone(url), name, attributes, target: points_to }
    }

    fn rows(&mut self, rows: Vec<Row>) -> Result<()> {
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
