//! Tokens: a file that one session has open is opened by others, with one open at the server.

use std::path::Path;
use std::time::Duration;

use dafs_proto::wire::{Features, Opcode, OpenFlags, ShareReply, ShareRequest, Status, Token};

use crate::api::dir::{Export, clean, forms};
use crate::api::file::File;
use crate::api::options::OpenOptions;
use crate::driver::Owner;
use crate::driver::pending::{Call, Pending};
use crate::error::{Error, Result};
use crate::handle::node::Reopen;
use crate::op::named::Named;

impl File {
    forms! {
        /// Makes a token of this file, by which other sessions of the same user and key open it ([`Export::open_token`]) to `read`, to
        /// `write` or both, as far as this file was opened for that. It lives for `time`, 60 s at most, which is also what
        /// [`Duration::ZERO`] asks for, and no longer than this session. It keeps the file open at the server when this one is closed.
        ///
        /// Fails with the status [`Status::NOT_SUPPORTED`] where the server knows no tokens: others then open the file by its path.
        share, submit_share, share_call, (&self, read: bool, write: bool, time: Duration) -> Token {
            check_feature(&self.owner, Opcode::Share, &self.node.path)?;
            if !read && !write {
                return Err(Error::Invalid("a token is for reading, writing or both".into()));
            }
            let mut rights = OpenFlags::empty();
            rights.set(OpenFlags::READ, read);
            rights.set(OpenFlags::WRITE, write);
            // Rounded up: zero stands for the longest time.
            let ttl_ms = u32::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(u32::MAX);
            let named = Named::of(&ShareRequest { rights, ttl_ms }.bytes());
            Ok(Call::plain(Some(&self.node), Opcode::Share, named, |op| {
                let reply = op.into_reply()?;
                ShareReply::decode(reply.body())?;
                Ok(Token::decode(&reply.payload)?)
            }))
        }
    }
}

impl Export {
    forms! {
        /// Opens the file that a token names, with the token's rights ([`File::share`]). The server resolves no path and checks no
        /// permissions.
        ///
        /// `path` and `options` are those of whoever opened the file: after a restart of the server it is opened again by them, if it is
        /// still the same file. What makes or cuts a file is left out. Fails with the status [`Status::NO_TOKEN`] where the token's time
        /// is over or it is for others, and with [`Status::NOT_SUPPORTED`] where the server knows no tokens.
        open_token, submit_open_token, open_token_call,
        (&self, token: &Token, path: impl AsRef<Path>, options: &OpenOptions) -> File {
            let path = clean(path.as_ref())?;
            let reopen = Reopen::open(options.flags()?);
            check_feature(&self.owner, Opcode::OpenToken, &path)?;
            let named = Named { payload: token.as_bytes().to_vec(), path, ..Named::default() };
            let options = options.clone();
            Ok(self.node_call(Opcode::OpenToken, named, reopen, move |owner, node, attributes| {
                File::new(owner, node, attributes, &options)
            }))
        }
    }
}

/// The server knows tokens; else the answer that it would give if it could.
fn check_feature(owner: &Owner, operation: Opcode, path: &[u8]) -> Result<()> {
    if owner.shared.lock().terms.has(Features::TOKENS) {
        return Ok(());
    }
    Err(Error::Status {
        status: Status::NOT_SUPPORTED,
        operation,
        path: path.to_vec(),
        explanation: "the server does not support tokens; open the file by its path".into(),
    })
}
