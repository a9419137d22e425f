//! Tokens: made of an open file, and opened by other sessions.

use std::time::Duration;

use dafs_proto::wire::{HEADER_SIZE, OpenFlags, ShareReply, ShareRequest, Status, Token, WireError};

use super::Worker;
use crate::storage::{At, FsOp, NodeId};
use crate::worker::dispatch::no_body;
use crate::worker::flight::Call;
use crate::worker::flight::after::After;
use crate::worker::flight::answer::{Answer, Payload, Problem};
use crate::worker::session::handles::OpenHandle;
use crate::worker::session::tokens::Shared;

/// Longest life of a token, and that of one whose maker names none, milliseconds.
const TTL_MAX_MS: u32 = 60_000;

impl Worker {
    /// Makes a token of an open file.
    pub(crate) fn share(&mut self, call: &Call, body: &[u8], payload: Payload<'_>) -> Result<(), Problem> {
        let ShareRequest { rights, ttl_ms } = ShareRequest::decode(body)?;
        let extra = self.payload(call, payload).len();
        if extra > 0 {
            return Err(WireError::TrailingBytes { what: "request without a payload", extra }.into());
        }
        let open = self.handle(call)?;
        let (readable, writable) = (rights.contains(OpenFlags::READ), rights.contains(OpenFlags::WRITE));
        if open.is_root || (readable && !open.readable) || (writable && !open.writable) {
            return Err(Status::BAD_HANDLE.into());
        }
        if rights.is_empty() {
            return Err(Status::INVALID.into());
        }
        let open = OpenHandle { readable, writable, ..open.clone() };
        let node = open.node;
        let ttl_ms = if ttl_ms == 0 { TTL_MAX_MS } else { ttl_ms.min(TTL_MAX_MS) };
        let session = self.sessions.find(call.session).ok_or(Status::NO_SESSION)?;
        let shared = Shared {
            session: call.session,
            key_name: session.client.key_name.clone(),
            open,
            until: self.now.after(Duration::from_millis(ttl_ms.into())),
        };
        self.end_expired_tokens();
        let token = Token::from(self.random());
        self.tokens.insert(&token, shared)?;
        self.shared_nodes.hold(node);
        let mut body = [0; ShareReply::HEAD_SIZE - HEADER_SIZE];
        ShareReply { ttl_ms }.encode(&mut body);
        let answer = Answer { body: &body, payload: token.as_bytes(), ..Answer::default() };
        self.reply(call, Status::OK, answer);
        Ok(())
    }

    /// Opens what a token names.
    pub(crate) fn open_token(
        &mut self,
        call: &Call,
        body: &[u8],
        payload: Payload<'_>,
    ) -> Result<(), Problem> {
        no_body(body)?;
        let token = Token::decode(&self.payload(call, payload))?;
        self.end_expired_tokens();
        let root = self.handle(call)?;
        if !root.is_root {
            return Err(Status::BAD_HANDLE.into());
        }
        let session = self.sessions.find(call.session).ok_or(Status::NO_SESSION)?;
        let open = self.tokens.find(&token, root, session.client.key_name.as_deref())?;
        // The token may end before storage has answered.
        self.shared_nodes.hold(open.node);
        let identity = open.rights.identity.clone();
        let at = At { node: open.node, path: Vec::new() };
        self.start(call, &identity, FsOp::Getattr { at, follow: true }, After::Held { open });
        Ok(())
    }

    /// Ends the tokens whose time is over.
    pub(crate) fn end_expired_tokens(&mut self) {
        while let Some(node) = self.tokens.take_expired(self.now) {
            self.release_node(node);
        }
    }

    /// A holder of a node lets go of it; the last one closes it. Not for roots, which stay open.
    pub(crate) fn release_node(&mut self, node: NodeId) {
        if self.shared_nodes.release(node) {
            self.storage.close(node);
        }
    }
}
