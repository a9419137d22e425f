//! What a crash between servers, or a program that cannot stripe, has left: found, and put right where nothing is lost by that.

mod walk;

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use dafs_client::{Attributes, Dir, SetAttributes, XattrSetMode};

use crate::data_server::{Connection, Failure};
use crate::error::{Error, Result};
use crate::layout::{LAYOUT_XATTR, Layout, PIECE_XATTR, STRIPED_BIT};
use crate::names::StripeId;
use crate::servers::IDENTITY_FILE;
use crate::volume::Volume;
use walk::Found;

/// Something that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Finding {
    /// A data server cannot be asked; its pieces were not checked.
    Unreachable {
        /// Its name.
        server: String,
        /// Why not.
        cause: String,
    },
    /// A piece of no file. Repaired by removing it.
    Orphan {
        /// The server that has it.
        server: String,
        /// Its name there.
        piece: String,
        /// Bytes that it holds.
        size: u64,
    },
    /// A piece is not there: what it held is lost.
    Missing {
        /// The file.
        path: String,
        /// The server that should have it.
        server: String,
        /// Its name there.
        piece: String,
    },
    /// A piece is not the one that the layout says.
    Wrong {
        /// The file.
        path: String,
        /// The server that has it.
        server: String,
        /// Its name there.
        piece: String,
    },
    /// Mode or owner of a piece are not those of the file. Repaired by setting them.
    Attributes {
        /// The file.
        path: String,
        /// The server that has the piece.
        server: String,
        /// Its name there.
        piece: String,
    },
    /// The layout is no layout.
    Layout {
        /// The file.
        path: String,
        /// What is wrong.
        cause: String,
    },
    /// The layout is that of another file. Repaired, where no other file has it, by making it this file's: the file was restored.
    Copied {
        /// The file.
        path: String,
        /// The file whose layout it is, where that is known.
        of: Option<String>,
    },
    /// The mode does not show that the file is striped. Repaired by setting it.
    Unmarked {
        /// The file.
        path: String,
    },
    /// The file on the metadata server has data, which a program wrote that cannot stripe.
    OwnData {
        /// The file.
        path: String,
        /// Bytes that it holds.
        size: u64,
    },
}

/// What a check has seen.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Files in all.
    pub files: u64,
    /// Striped ones.
    pub striped: u64,
    /// Pieces on servers.
    pub pieces: u64,
    /// What is wrong, and whether it was repaired.
    pub findings: Vec<(Finding, bool)>,
}

impl Report {
    /// All that is left to be done.
    pub fn open(&self) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(|(_, repaired)| !repaired).map(|(finding, _)| finding)
    }
}

impl Volume {
    /// Looks at all files of the export and all pieces of its servers, and with `repair` puts right what it can. A piece of no file that is
    /// younger than `age_min` may belong to a file that is being made; it is left alone. Who removes orphans makes sure that nobody renames
    /// files meanwhile: one that escapes two walks would lose its pieces. Needs the rights to read all files. Blocks.
    pub fn check(&self, repair: bool, age_min: Duration) -> Result<Report> {
        let mut check = Check { volume: self, repair, report: Report::default() };
        let found = walk::walk(self)?;
        (check.report.files, check.report.striped) = (found.files, found.striped.len() as u64);
        for (path, cause) in &found.unreadable {
            check.add(Finding::Layout { path: path.clone(), cause: cause.clone() }, false);
        }
        check.files(&found)?;
        let known: HashSet<StripeId> = found.striped.iter().map(|file| file.layout.id).collect();
        check.servers(&found, known, age_min)?;
        Ok(check.report)
    }
}

struct Check<'a> {
    volume: &'a Volume,
    repair: bool,
    report: Report,
}

/// The pieces of a server, by name.
type Pieces = HashMap<String, Attributes>;

impl Check<'_> {
    fn add(&mut self, finding: Finding, repaired: bool) {
        self.report.findings.push((finding, repaired));
    }

    /// What concerns the files on the metadata server.
    fn files(&mut self, found: &Found) -> Result<()> {
        let root = self.volume.root();
        let mut owners: HashMap<StripeId, Vec<&walk::Striped>> = HashMap::new();
        for file in &found.striped {
            owners.entry(file.layout.id).or_default().push(file);
        }
        for file in &found.striped {
            let path = || file.path.clone();
            let others = owners.get(&file.layout.id).map_or(&[][..], |files| files);
            if file.layout.file_id != file.attributes.file_id {
                // Names of one file are one file.
                let is_alone = others.iter().all(|other| other.attributes.file_id == file.attributes.file_id);
                let of = others.iter().find(|other| other.layout.file_id == other.attributes.file_id);
                if is_alone && self.repair {
                    let layout = Layout { file_id: file.attributes.file_id, ..file.layout.clone() };
                    let text = layout.encode();
                    root.set_xattr(&file.path, LAYOUT_XATTR, text.as_bytes(), XattrSetMode::Replace)?;
                }
                let repaired = is_alone && self.repair;
                self.add(Finding::Copied { path: path(), of: of.map(|of| of.path.clone()) }, repaired);
                if !repaired {
                    continue;
                }
            }
            if file.attributes.mode & STRIPED_BIT == 0 {
                if self.repair {
                    let mode = Some(file.attributes.mode | STRIPED_BIT);
                    root.set_attributes(
                        &file.path,
                        false,
                        &SetAttributes { mode, ..SetAttributes::default() },
                    )?;
                }
                self.add(Finding::Unmarked { path: path() }, self.repair);
            }
            if file.attributes.size > 0 {
                self.add(Finding::OwnData { path: path(), size: file.attributes.size }, false);
            }
        }
        Ok(())
    }

    /// What concerns the pieces on the data servers.
    fn servers(&mut self, found: &Found, mut known: HashSet<StripeId>, age_min: Duration) -> Result<()> {
        let mut listed = HashMap::new();
        for row in self.volume.servers()? {
            match self.volume.connection(&row.name).and_then(|connection| {
                let pieces = list(&connection.pieces)?;
                Ok((connection, pieces))
            }) {
                Ok(server) => {
                    self.report.pieces += server.1.len() as u64;
                    listed.insert(row.name, server);
                }
                Err(failure) => {
                    self.add(Finding::Unreachable { server: row.name, cause: failure.cause() }, false);
                }
            }
        }
        for file in &found.striped {
            for (index, server) in file.layout.servers.iter().enumerate() {
                match listed.get(server) {
                    Some((connection, pieces)) => self.piece(file, index, (connection, pieces)),
                    None if self.volume.servers()?.iter().any(|row| row.name == *server) => {}
                    None => {
                        let cause = format!("it names server {server}, and the servers file does not");
                        self.add(Finding::Layout { path: file.path.clone(), cause }, false);
                    }
                }
            }
        }
        let mut orphans = orphans(&listed, &known, age_min);
        if self.repair && !orphans.is_empty() {
            // One that was renamed meanwhile may have been missed.
            known.extend(walk::walk(self.volume)?.striped.iter().map(|file| file.layout.id));
            orphans.retain(|(_, piece, _)| id_of(piece).is_none_or(|id| !known.contains(&id)));
        }
        for (server, piece, size) in orphans {
            let removed = self.repair
                && listed.get(&server).is_some_and(|(there, _)| {
                    there
                        .pieces
                        .remove_file(&piece)
                        .inspect_err(|error| tracing::warn!("{server}: {error}"))
                        .is_ok()
                });
            self.add(Finding::Orphan { server, piece, size }, removed);
        }
        Ok(())
    }

    fn piece(&mut self, file: &walk::Striped, index: usize, (there, pieces): (&Connection, &Pieces)) {
        let (path, piece) = (file.path.clone(), file.layout.piece_name(index));
        let server = file.layout.servers[index].clone();
        let Some(attributes) = pieces.get(&piece) else {
            return self.add(Finding::Missing { path, server, piece }, false);
        };
        let mark = there.pieces.xattr(&piece, PIECE_XATTR);
        if mark.is_ok_and(|mark| mark != file.layout.piece_mark(index).as_bytes()) {
            return self.add(Finding::Wrong { path, server, piece }, false);
        }
        let wanted = &file.attributes;
        let mode = wanted.mode & 0o777;
        if attributes.mode & 0o777 != mode || attributes.uid != wanted.uid || attributes.gid != wanted.gid {
            let set = SetAttributes {
                mode: Some(mode),
                uid: (attributes.uid != wanted.uid).then_some(wanted.uid),
                gid: (attributes.gid != wanted.gid).then_some(wanted.gid),
                ..SetAttributes::default()
            };
            let repaired = self.repair && there.pieces.set_attributes(&piece, false, &set).is_ok();
            self.add(Finding::Attributes { path, server, piece }, repaired);
        }
    }
}

fn list(pieces: &Dir) -> std::result::Result<Pieces, Failure> {
    let mut found = HashMap::new();
    for entry in pieces.read_dir("", true)? {
        let entry = entry?;
        if let (Ok(name), Some(attributes)) = (String::from_utf8(entry.name), entry.attributes) {
            found.insert(name, attributes);
        }
    }
    found.remove(IDENTITY_FILE);
    Ok(found)
}

/// Pieces of no known file that are old enough: server, name and size.
fn orphans(
    listed: &HashMap<String, (std::sync::Arc<Connection>, Pieces)>,
    known: &HashSet<StripeId>,
    age_min: Duration,
) -> Vec<(String, String, u64)> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let latest = i64::try_from(now.saturating_sub(age_min.as_secs())).unwrap_or(i64::MAX);
    let mut found = Vec::new();
    for (server, (_, pieces)) in listed {
        for (piece, attributes) in pieces {
            // What is no name of a piece is nobody's here.
            let is_orphan = id_of(piece).is_some_and(|id| !known.contains(&id));
            if is_orphan && attributes.ctime.seconds <= latest {
                found.push((server.clone(), piece.clone(), attributes.size));
            }
        }
    }
    found.sort();
    found
}

fn id_of(piece: &str) -> Option<StripeId> {
    let (id, index) = piece.split_once('.')?;
    index.parse::<usize>().ok()?;
    StripeId::parse(id)
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable { server, cause } => write!(f, "server {server} cannot be checked: {cause}"),
            Self::Orphan { server, piece, size } => {
                write!(f, "piece {piece} of {size} bytes on server {server} is of no file")
            }
            Self::Missing { path, server, piece } => {
                write!(f, "{path}: piece {piece} on server {server} is gone, and what it held is lost")
            }
            Self::Wrong { path, server, piece } => {
                write!(f, "{path}: piece {piece} on server {server} is that of another file")
            }
            Self::Attributes { path, server, piece } => {
                write!(f, "{path}: piece {piece} on server {server} has another mode or owner than the file")
            }
            Self::Layout { path, cause } => write!(f, "{path}: its layout is of no use: {cause}"),
            Self::Copied { path, of: Some(of) } => write!(f, "{path}: its layout was copied from {of}"),
            Self::Copied { path, of: None } => {
                write!(f, "{path}: its layout is that of a file with another number")
            }
            Self::Unmarked { path } => write!(f, "{path}: its mode does not show that it is striped"),
            Self::OwnData { path, size } => {
                write!(f, "{path}: a program that cannot stripe has written {size} bytes to the file itself")
            }
        }
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Client(error) => Self::Client(error),
            Failure::Wrong(cause) => Self::Servers(cause),
        }
    }
}
