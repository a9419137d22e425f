//! Crossovers that a client has measured end to end, and the thresholds that a client is told.

use std::sync::Arc;

use dafs_proto::transport::OpToken;
use dafs_proto::wire::{Crossovers, Status, Thresholds, decode_message_pack};

use super::super::Worker;
use crate::access::ClientIdentity;
use crate::shared::mail::Mail;
use crate::shared::published;
use crate::shared::store::PublishedName;
use crate::worker::flight::Call;
use crate::worker::flight::answer::Served;
use crate::worker::ids::ConnectionKey;
use crate::worker::operations::WaitsFor;

impl Worker {
    /// The thresholds of a client on a connection: what was published for it, else what the server measured.
    pub(crate) fn thresholds_of(&self, key: ConnectionKey, client: &ClientIdentity) -> Thresholds {
        let mut thresholds = self.connections.thresholds(key);
        self.shared.published.apply(&self.published_name(key, client), &mut thresholds);
        thresholds
    }

    fn published_name(&self, key: ConnectionKey, client: &ClientIdentity) -> PublishedName {
        let connection = &self.connections[key];
        let listener = &self.connections.listener_of(connection).address;
        published::name_of(
            listener,
            client.key_name.as_deref(),
            connection.endpoint.capabilities().peer.address,
        )
    }

    /// Publishes crossovers for all clients of the same key, or of the same network, on this transport. Answers when they are kept.
    pub(super) fn publish_crossovers(&mut self, call: &Call, payload: &[u8]) -> Served {
        let crossovers: Crossovers = decode_message_pack("crossovers", payload)?;
        let client = &self.sessions.find(call.session).ok_or(Status::NO_SESSION)?.client.known_as;
        if !self.shared.rules().access.may_publish(client) {
            return Err(Status::PERMISSION.into());
        }
        if !published::are_within(&crossovers, &self.connections.thresholds(call.connection)) {
            return Err(Status::INVALID.into());
        }
        let name = self.published_name(call.connection, client);
        tracing::info!(transport = %name.0, clients = %name.1, ?crossovers, "crossovers published");
        if !self.shared.published.are_kept() {
            self.shared.published.publish(name, crossovers, Box::new(|_| {}));
            self.reply_status(call, Status::OK);
            return Ok(());
        }
        let waiter = self.park(*call, WaitsFor::CrossoversKept);
        let (shared, id) = (Arc::downgrade(&self.shared), self.id);
        let tell = Box::new(move |status| {
            if let Some(shared) = shared.upgrade() {
                shared.send(id, Mail::CrossoversKept { waiter, status });
            }
        });
        self.shared.published.publish(name, crossovers, tell);
        Ok(())
    }

    /// Published crossovers were written to the store, or not.
    pub(crate) fn on_crossovers_kept(&mut self, waiter: OpToken, status: Status) {
        let Some(index) = self.operations.index_of(waiter) else { return };
        if !matches!(self.operations[index].state, WaitsFor::CrossoversKept) {
            return;
        }
        let call = self.unpark(index).call;
        self.connections.mark_dirty(call.connection);
        self.reply_status(&call, status);
    }
}
