//! One piece of an open file: opened when it is needed, and again on a new session.

use std::sync::{Arc, Mutex, PoisonError};

use dafs_client::{Error as ClientError, File, OpenOptions, Status};

use crate::data_server::{Connection, DataServer, Failure, ends_session};
use crate::error::{Error, Part, Result};
use crate::layout::{Layout, PIECE_XATTR};

/// A piece, on its server.
pub(crate) struct Piece {
    server: Option<Arc<DataServer>>,
    server_name: String,
    part: Part,
    name: String,
    mark: String,
    options: OpenOptions,
    opened: Mutex<Option<Opened>>,
}

#[derive(Clone)]
struct Opened {
    connection: Arc<Connection>,
    file: Arc<File>,
}

impl Piece {
    /// `server` is `None` where the servers file does not name it.
    pub(crate) fn new(
        layout: &Layout,
        index: usize,
        path: &str,
        server: Option<Arc<DataServer>>,
        options: &OpenOptions,
    ) -> Self {
        let (unit, factor) = (layout.unit, layout.servers.len() as u64);
        Self {
            server,
            server_name: layout.servers[index].clone(),
            part: Part { path: path.to_owned(), first: index as u64 * unit, unit, stride: unit * factor },
            name: layout.piece_name(index),
            mark: layout.piece_mark(index),
            options: options.clone(),
            opened: Mutex::new(None),
        }
    }

    /// The open piece. Blocks where it is not open yet.
    pub(crate) fn file(&self) -> Result<Arc<File>> {
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(opened) = &*opened {
            return Ok(Arc::clone(&opened.file));
        }
        let connection = self.connection()?;
        let file = Arc::new(self.open(&connection)?);
        *opened = Some(Opened { connection, file: Arc::clone(&file) });
        Ok(file)
    }

    pub(crate) fn connection(&self) -> Result<Arc<Connection>> {
        let Some(server) = &self.server else {
            return Err(self.wrong(
                "the servers file does not name it; add it with `dafs stripe add`, or restore the file"
                    .to_owned(),
            ));
        };
        server.connection().map_err(|failure| self.failed(failure))
    }

    fn open(&self, connection: &Arc<Connection>) -> Result<File> {
        let options = self.options.clone().no_follow(true).clone();
        let file = match connection.pieces.open_with(&self.name, &options) {
            Err(error) if error.is_not_found() => {
                return Err(self.wrong(format!("it has no piece {}; what was there is lost", self.name)));
            }
            opened => opened.map_err(|error| self.error(connection, error))?,
        };
        match file.xattr(PIECE_XATTR) {
            Ok(mark) if mark == self.mark.as_bytes() => Ok(file),
            Err(error) if error.status() != Some(Status::NO_DATA) => Err(self.error(connection, error)),
            _ => Err(self.wrong(format!("{} there is another piece than the layout says", self.name))),
        }
    }

    /// An operation on [`Piece::file`] failed.
    pub(crate) fn failed_with(&self, error: ClientError) -> Error {
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(open) = &*opened {
            let connection = Arc::clone(&open.connection);
            if ends_session(&error) || matches!(error, ClientError::Stale { .. }) {
                *opened = None;
            }
            return self.error(&connection, error);
        }
        self.failed(Failure::Client(error))
    }

    fn error(&self, connection: &Arc<Connection>, error: ClientError) -> Error {
        if let Some(server) = &self.server
            && ends_session(&error)
        {
            server.forget(connection);
        }
        self.failed(Failure::Client(error))
    }

    fn failed(&self, failure: Failure) -> Error {
        match failure {
            Failure::Client(source) => {
                Error::Server { server: self.server_name.clone(), part: Box::new(self.part.clone()), source }
            }
            Failure::Wrong(cause) => self.wrong(cause),
        }
    }

    pub(crate) fn wrong(&self, cause: String) -> Error {
        Error::Piece { server: self.server_name.clone(), part: Box::new(self.part.clone()), cause }
    }
}
