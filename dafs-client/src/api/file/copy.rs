//! Copies from one file to another within the server.

use std::sync::Arc;

use dafs_proto::wire::{CopyReply, CopyRequest, Opcode};

use crate::api::dir::forms;
use crate::api::file::File;
use crate::driver::pending::{Call, Pending};
use crate::error::{Error, Result};
use crate::op::named::Named;

/// What one request to copy has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copied {
    /// Bytes copied, from the first one on. Less than asked for where the source ended, or where the server left the rest for another
    /// request.
    pub count: u64,
    /// The source ended before all that was asked for; of a length of 0, when all is copied.
    pub end: bool,
}

impl File {
    /// Copies `len` bytes (0: to the end that the file has now) from `offset` of this file to `target_offset` of `target`, and returns how
    /// many: fewer only where this file ends. The data stays on the server, which shares the blocks of both files where its file system
    /// can.
    ///
    /// As durable as an unstable write. Both files belong to one session; the ranges of one file must not overlap. Fails with the status
    /// `CROSS_DEVICE` where the server cannot copy between the two, as from memory to a directory: the caller then reads and writes.
    pub fn copy_range(&self, offset: u64, len: u64, target: &File, target_offset: u64) -> Result<u64> {
        // A copy within one file may move the end of it further and further.
        let len = if len == 0 { self.metadata()?.size.saturating_sub(offset) } else { len };
        let mut done = 0;
        loop {
            let copied = self.copy_some(offset + done, len - done, target, target_offset + done)?;
            done += copied.count;
            // A server copies something, or says why not.
            if copied.end || copied.count == 0 || done >= len {
                return Ok(done);
            }
        }
    }

    forms! {
        /// As [`File::copy_range`], in one request: the server may copy a part. It copies 64 MiB at most, or 1 MiB of an export in memory,
        /// where it does not share blocks.
        copy_some, submit_copy_some, copy_call,
        (&self, offset: u64, len: u64, target: &File, target_offset: u64) -> Copied {
            if !Arc::ptr_eq(&self.owner, &target.owner) {
                return Err(Error::Invalid("both files must be of one session".into()));
            }
            for (begin, what) in [(offset, "source"), (target_offset, "target")] {
                if begin.checked_add(len).is_none() {
                    return Err(Error::Invalid(format!("{len} bytes at {begin} of the {what} of a copy: beyond the largest file")));
                }
            }
            let finish = move |op: crate::op::Op| {
                let reply = op.into_reply()?;
                let CopyReply { count, end, .. } = CopyReply::decode(reply.body())?;
                let most = if len == 0 { u64::MAX - offset.max(target_offset) } else { len };
                if count > most {
                    return Err(Error::Invalid("the server claims to have copied more than requested".into()));
                }
                Ok(Copied { count, end })
            };
            let request = CopyRequest { source: 0, source_offset: offset, offset: target_offset, len };
            let named = Named::of(&request.bytes());
            // The handle of the source is written into the body when that is sent.
            let named = Named { second: Some(Arc::clone(&self.node)), ..named };
            Ok(Call::boxed(Some(&target.node), Opcode::CopyRange, named, finish))
        }
    }
}
