//! Making striped files, and removing pieces.

use std::path::Path;
use std::sync::Arc;

use dafs_client::{
    Dir, Error as ClientError, File as PlainFile, OpenOptions, Pending, SetAttributes, Status, XattrSetMode,
    wait_all,
};

use crate::data_server::Connection;
use crate::error::{Error, Result};
use crate::file::piece::Piece;
use crate::file::striped::Striped;
use crate::file::{File, Kind};
use crate::layout::{LAYOUT_XATTR, Layout, PIECE_XATTR, STRIPED_BIT, Striping};
use crate::names::StripeId;
use crate::volume::{Volume, parent_of, without_creation};

/// How a file begins that the server's file system cannot make without a name.
const PREFIX: &str = ".dafs-new-";

/// Makes a striped file that is not there yet: without a name, then its pieces, then the name. Whatever ends before that leaves no file,
/// and pieces at most, which `dafs stripe check` finds.
pub(super) fn create(
    volume: &Volume,
    path: &Path,
    options: &OpenOptions,
    striping: &Striping,
) -> Result<File> {
    let root = &volume.inner.root;
    let mode = options.mode_bits() & 0o777;
    let (file, own) = match root.open_unnamed(parent_of(path), mode | OWN_MODE) {
        Ok(file) => (file, None),
        Err(error) if error.status() == Some(Status::NOT_SUPPORTED) => {
            let own = parent_of(path).join(format!("{PREFIX}{}", StripeId::random()?));
            let new =
                OpenOptions::new().read(true).write(true).create_new(true).mode(mode | OWN_MODE).clone();
            (root.open_with(&own, &new)?, Some(own))
        }
        Err(error) => return Err(error.into()),
    };
    let made = stripe(volume, file, path, options, striping).and_then(|striped| {
        match place(root, &striped, own.as_deref(), path) {
            Ok(()) => Ok(striped),
            Err(error) => {
                remove_pieces(volume, &striped.layout);
                Err(error)
            }
        }
    });
    let striped = made.inspect_err(|_| own.iter().for_each(|own| drop(root.remove_file(own))))?;
    // Opened by its name, it is found again after a restart of the server.
    let file = root.open_with(path, &without_creation(options))?;
    let striped = volume.striped(striped.layout, file, path, options)?;
    if mode | OWN_MODE != mode {
        // What the mode forbids, who creates the file may do all the same.
        striped.pieces.iter().try_for_each(|piece| piece.file().map(drop))?;
        striped.set_attributes(&SetAttributes { mode: Some(mode), ..SetAttributes::default() })?;
    }
    Ok(File { kind: Kind::Striped(Arc::new(striped)) })
}

/// What who makes a file must be allowed meanwhile.
const OWN_MODE: u32 = 0o600;

/// Gives it its name, which nothing has.
fn place(root: &Dir, striped: &Striped, own: Option<&Path>, path: &Path) -> Result<()> {
    match own {
        Some(own) => Ok(root.rename(own, root, path, false)?),
        None => {
            striped.metadata_file.link_to(root, path, false)?;
            Ok(striped.metadata_file.commit()?)
        }
    }
}

/// Lays a file over servers that has no data yet: makes its pieces, and writes its layout down.
pub(super) fn stripe(
    volume: &Volume,
    file: PlainFile,
    path: &Path,
    options: &OpenOptions,
    striping: &Striping,
) -> Result<Striped> {
    striping.check()?;
    let attributes = file.metadata()?;
    let mode = attributes.mode & 0o777 | OWN_MODE;
    let mut layout = choose(volume, striping)?;
    layout.file_id = attributes.file_id;
    let made = make_pieces(volume, &layout, path, mode).and_then(|()| describe(&file, &layout, mode));
    if let Err(error) = made {
        remove_pieces(volume, &layout);
        return Err(error);
    }
    volume.striped(layout, file, path, options)
}

/// Which servers, and in which order.
fn choose(volume: &Volume, striping: &Striping) -> Result<Layout> {
    let rows = volume.servers()?;
    if rows.is_empty() {
        return Err(Error::Servers("there is none: `dafs stripe add` adds a server".to_owned()));
    }
    let factor = striping.factor.unwrap_or(rows.len().min(crate::FACTOR_MAX));
    if factor > rows.len() {
        let len = rows.len();
        return Err(Error::Invalid(format!("{factor} servers for one file, and the export has {len}")));
    }
    let id = StripeId::random()?;
    let first = match striping.first {
        Some(first) if first < rows.len() => first,
        Some(first) => {
            return Err(Error::Invalid(format!("no server {first}: the export has {}", rows.len())));
        }
        None => usize::from(id.0[15]) % rows.len(),
    };
    let servers = rows.iter().cycle().skip(first).take(factor).map(|row| row.name.clone()).collect();
    Ok(Layout { id, file_id: 0, unit: striping.unit, servers })
}

type Submitted<T> = Pending<std::result::Result<T, ClientError>>;

/// Makes all pieces, at once.
fn make_pieces(volume: &Volume, layout: &Layout, path: &Path, mode: u32) -> Result<()> {
    let table = volume.table()?;
    let path = path.display().to_string();
    let piece = |index: usize| {
        let place = table.position(&layout.servers[index]);
        let server = place.map(|place| volume.server(&table.rows[place]));
        Piece::new(layout, index, &path, server, OpenOptions::new().read(true))
    };
    let pieces: Vec<Piece> = (0..layout.servers.len()).map(piece).collect();
    let connections: Vec<Arc<Connection>> = pieces.iter().map(Piece::connection).collect::<Result<_>>()?;
    let places = || connections.iter().zip(0..);
    let options = OpenOptions::new().write(true).read(true).create_new(true).mode(mode).clone();
    let made = wait_all(places().map(|(connection, index)| -> Submitted<PlainFile> {
        connection.pieces.submit_open_with(layout.piece_name(index), &options)
    }));
    let files: Vec<PlainFile> = named(&pieces, made)?;
    let marked = wait_all(places().map(|(connection, index)| -> Submitted<()> {
        let (name, mark) = (layout.piece_name(index), layout.piece_mark(index));
        connection.pieces.submit_set_xattr(name, PIECE_XATTR, mark.as_bytes(), XattrSetMode::Create)
    }));
    named(&pieces, marked)?;
    named(&pieces, wait_all(files.iter().map(PlainFile::submit_commit)))?;
    Ok(())
}

fn named<T>(pieces: &[Piece], results: Vec<std::result::Result<T, ClientError>>) -> Result<Vec<T>> {
    pieces
        .iter()
        .zip(results)
        .map(|(piece, result)| result.map_err(|error| piece.failed_with(error)))
        .collect()
}

fn describe(file: &PlainFile, layout: &Layout, mode: u32) -> Result<()> {
    file.set_xattr(LAYOUT_XATTR, layout.encode().as_bytes(), XattrSetMode::Create)?;
    file.set_attributes(&SetAttributes { mode: Some(mode | STRIPED_BIT), ..SetAttributes::default() })?;
    Ok(file.commit()?)
}

/// Removes what there is of the pieces of a file. What cannot be removed stays, and is told.
pub(super) fn remove_pieces(volume: &Volume, layout: &Layout) {
    let Ok(table) = volume.table() else { return };
    let mut pendings = Vec::new();
    for (index, name) in layout.servers.iter().enumerate() {
        let left = |cause: &dyn std::fmt::Display| {
            tracing::warn!(
                "cannot remove piece {} on server {name}: {cause}; `dafs stripe check` finds it",
                layout.piece_name(index)
            );
        };
        let Some(place) = table.position(name) else {
            left(&"the servers file does not name it");
            continue;
        };
        match volume.server(&table.rows[place]).connection() {
            Ok(connection) => {
                let removed = connection.pieces.submit_remove_file(layout.piece_name(index));
                pendings.push(removed.map(move |removed| (index, removed)));
            }
            Err(failure) => left(&failure.cause()),
        }
    }
    for (index, removed) in wait_all(pendings) {
        match removed {
            Err(error) if !error.is_not_found() => tracing::warn!(
                "cannot remove piece {} on server {}: {}; `dafs stripe check` finds it",
                layout.piece_name(index),
                layout.servers[index],
                error.cause()
            ),
            _ => {}
        }
    }
}
