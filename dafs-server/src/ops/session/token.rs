//! Tokens: made of an open file, and opened by other sessions.

use std::sync::Arc;
use std::time::Duration;

use dafs_proto::wire::{OpenFlags, SessionId, ShareReply, ShareRequest, Status, Token};

use super::super::Worker;
use crate::shared::tokens::{Claim, Grant, TokenFile};
use crate::storage::{At, FsOp};
use crate::worker::flight::Call;
use crate::worker::flight::after::After;
use crate::worker::flight::answer::{Answer, Payload, Served};
use crate::worker::requests::check::no_body;
use crate::worker::sessions::handles::OpenHandle;

/// Longest life of a token, and that of one whose maker names none, milliseconds.
const TTL_MAX_MS: u32 = 60_000;

impl Worker {
    /// Makes a token of an open file.
    pub(crate) fn share(&mut self, call: &Call, body: &[u8], payload: Payload<'_>) -> Served {
        let ShareRequest { rights, ttl_ms } = ShareRequest::decode(body)?;
        self.connections.no_payload(call, payload)?;
        let open = self.handle(call)?.clone();
        let (readable, writable) = (rights.contains(OpenFlags::READ), rights.contains(OpenFlags::WRITE));
        if open.is_root || (readable && !open.readable) || (writable && !open.writable) {
            return Err(Status::BAD_HANDLE.into());
        }
        if rights.is_empty() {
            return Err(Status::INVALID.into());
        }
        let ttl_ms = if ttl_ms == 0 { TTL_MAX_MS } else { ttl_ms.min(TTL_MAX_MS) };
        let file = self.storage.share(open.node)?;
        let descriptors = open.descriptors(&self.shared.settings);
        let session = self.sessions.find_mut(call.session).ok_or(Status::NO_SESSION)?;
        if !session.descriptors.grow(descriptors) {
            return Err(Status::TOO_MANY_OPEN.into());
        }
        let grant = Grant {
            maker: session.id,
            key_name: session.client.known_as.key_name.clone(),
            identity: open.rights.identity.clone(),
            open: TokenFile {
                export: open.node.export,
                file,
                readable,
                writable,
                opened: open.opened,
                share: open.share.clone(),
            },
            until: self.now.after(Duration::from_millis(ttl_ms.into())),
            _descriptors: session.descriptors.split(descriptors),
        };
        self.end_expired_tokens();
        let token = Token::from(self.random());
        let limit = &self.shared.budgets.of_session.tokens;
        self.shared.tokens().insert(&token, grant, limit.max()).inspect_err(|_| limit.count_refused())?;
        let body = ShareReply { ttl_ms }.bytes();
        let answer = Answer { body: &body, payload: token.as_bytes(), ..Answer::default() };
        self.reply(call, Status::OK, answer);
        Ok(())
    }

    /// Opens what a token names.
    pub(crate) fn open_token(&mut self, call: &Call, body: &[u8], payload: Payload<'_>) -> Served {
        no_body(body)?;
        let token = Token::decode(&self.connections.copied_payload(call, payload))?;
        self.end_expired_tokens();
        let root = self.handle(call)?;
        if !root.is_root {
            return Err(Status::BAD_HANDLE.into());
        }
        let session = self.sessions.find(call.session).ok_or(Status::NO_SESSION)?;
        let claim = Claim {
            export: root.node.export,
            identity: &root.rights.identity,
            read_only: root.rights.read_only,
            key_name: session.client.known_as.key_name.as_deref(),
        };
        let found = self.shared.tokens().find(&token, &claim)?;
        let rights = Arc::clone(&root.rights);
        let node = self.storage.adopt(found.export, &found.file)?;
        let TokenFile { readable, writable, opened, share, .. } = found;
        let open = OpenHandle { node, rights, readable, writable, opened, is_root: false, share };
        let (identity, at) = (open.rights.identity.clone(), At { node, path: Vec::new() });
        self.start_as(&identity, call, FsOp::Getattr { at, follow: true }, After::Held { open });
        Ok(())
    }

    /// Ends the tokens whose time is over.
    pub(crate) fn end_expired_tokens(&mut self) {
        loop {
            let expired = self.shared.tokens().take_expired(self.now);
            let Some(open) = expired else { return };
            self.let_go(open);
        }
    }

    /// Ends the tokens that a session has made.
    pub(crate) fn end_tokens_of(&mut self, session: SessionId) {
        loop {
            let of_session = self.shared.tokens().take_of(session);
            let Some(open) = of_session else { return };
            self.let_go(open);
        }
    }

    /// Lets go of a token's file as of a node: storage knows where that may take its time.
    fn let_go(&mut self, open: TokenFile) {
        let TokenFile { export, file, .. } = open;
        let node = self.storage.adopt(export, &file);
        drop(file);
        if let Ok(node) = node {
            self.storage.close(node);
        }
    }
}
