//! Files that a server on this host hands over.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use dafs_proto::wire::{Features, Opcode, Status};

use crate::api::dir::forms;
use crate::api::file::File;
use crate::driver::pending::{Call, Pending};
use crate::error::{Error, Result};
use crate::op::named::Named;

impl File {
    forms! {
        /// Asks a server on this host for a descriptor of this file: reads and writes by it go past the server, at the speed of the local
        /// file system. It is open for reading and writing, or for reading alone where the server's file system is mounted read-only. The
        /// server gives it to root alone, over shared memory, where the export permits that (`local_open`). Until this file is closed, the
        /// server knows that somebody reads and writes past it.
        ///
        /// Fails with the status [`Status::NOT_SUPPORTED`] where the server hands over nothing, and with [`Status::BUSY`] while it wants
        /// the file back from others ([`File::is_recalled`]).
        hand_over, submit_hand_over, hand_over_call, (&self) -> OwnedFd {
            let path = self.node.path.clone();
            let failed = move |status, explanation: &str| Error::Status {
                status,
                operation: Opcode::HandOver,
                path,
                explanation: explanation.to_owned(),
            };
            if !self.owner.shared.lock().terms.has(Features::LOCAL_FILES) {
                return Err(failed(Status::NOT_SUPPORTED, "the server hands no files over"));
            }
            let (owner, node) = (Arc::clone(&self.owner), Arc::clone(&self.node));
            Ok(Call::boxed(Some(&self.node), Opcode::HandOver, Named::default(), move |op| {
                // Also where it is refused: nothing is expected any more.
                let passed = owner.shared.take_passed(node.handle());
                op.into_reply()?;
                if passed.is_some() {
                    node.hand_over();
                }
                passed.ok_or_else(|| failed(Status::AGAIN, "the descriptor was lost on its way"))
            }))
        }
    }

    /// The server wants the descriptor back that it has handed over ([`File::hand_over`]), for a fence, a mandatory lock or a deny mode of
    /// somebody else: close it, and then this file. What the server does then waits for that, and is refused a lease later. Does not block.
    pub fn is_recalled(&self) -> bool {
        self.node.is_recalled()
    }
}
