//! `dafs ls`.

use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::rc::Rc;

use dafs_client::{Attributes, FileKind};

use crate::flags::Ls;
use crate::format::{self, Owners};
use crate::local_time;
use crate::output::Output;
use crate::remote::{Remotes, Target, join};
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
        let name = match target.path.as_os_str().is_empty() {
            true => b"/".to_vec(),
            false => target.path.as_os_str().as_bytes().to_vec(),
        };
        let url = self.url_for_programs(target, Path::new(""));
        let row = self.row((target, Path::new(""), &url), name, Some(attributes));
        self.rows(vec![row])
    }

    /// A directory, and with -R those below, depth first.
    fn directories(&mut self, target: &Target) -> Result<()> {
        let mut stack = vec![target.path.clone()];
        while let Some(path) = stack.pop() {
            let mut below = Vec::new();
            let listed = self.directory(target, &path, &mut below);
            match listed {
                Err(unreached @ Failure::Unreached(_)) => return Err(unreached),
                listed => self.failures.keep_going(listed)?,
            }
            below.sort_by(|one, other| other.cmp(one));
            stack.append(&mut below);
        }
        Ok(())
    }

    fn directory(&mut self, target: &Target, path: &Path, below: &mut Vec<PathBuf>) -> Result<()> {
        self.heading(target, path)?;
        let failed = |error| target.failed_at("list", path, &error);
        let wants_attributes = self.flags.long || self.flags.json || self.flags.recursive;
        let entries = target.export.read_dir(path, wants_attributes).map_err(failed)?;
        let dir = entries.dir().clone();
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
                let own = join(path, name);
                kept += own.as_os_str().len() + size_of::<PathBuf>();
                below.push(own);
            }
            let row = self.row((target, path, &url), entry.name, attributes);
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
        (target, directory, url): (&Target, &Path, &Rc<[u8]>),
        name: Vec<u8>,
        attributes: Option<Attributes>,
    ) -> Row {
        let is_link = attributes.as_ref().is_some_and(|attributes| attributes.kind == FileKind::Symlink);
        let points_to = match is_link && (self.flags.long || self.flags.json) {
            true => {
                let path = join(directory, Path::new(OsStr::from_bytes(&name)));
                target.export.read_link(path).ok()
            }
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
