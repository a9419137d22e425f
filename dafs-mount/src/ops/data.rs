//! Data: read, written, copied, made durable.

use std::rc::Rc;

use dafs_client::{Error, RegisteredBuf, Stability, Status, Transferred};

use crate::callers::Ended;
use crate::files::OpenFile;
use crate::kernel::device::DATA_SIZE_MAX;
use crate::kernel::errno::{Answer, Errno};
use crate::kernel::reply::Fields;
use crate::kernel::request::{CopyAsked, ReadAsked, Request};
use crate::transfers::{Kind, Transfer};
use crate::volume::Volume;

impl Volume {
    /// Begins a read or a write that needs nothing but one transfer; `false` where it needs more than that, and so a task.
    pub(crate) fn begin_at_once(
        &self,
        unique: u64,
        request: &Request,
        data: &mut Option<RegisteredBuf>,
    ) -> bool {
        let begun = match *request {
            Request::Read(asked) => {
                let Some(open) = self.usable_file(asked.file) else { return false };
                self.begin_read(unique, open, &asked)
            }
            Request::Write { file, offset, size, flags } if !self.appends(flags) => {
                let Some(open) = self.usable_file(file) else { return false };
                if open.lasts(flags).is_some() {
                    return false;
                }
                let Some(data) = data.take() else { return false };
                Ok(self.begin_write(unique, open, (offset, size), data))
            }
            _ => return false,
        };
        match begun.map(|transfer| self.transfers.add(transfer)) {
            Ok(Some(ended)) => self.end(ended),
            Ok(None) => {}
            Err(error) => self.device.fail(unique, error),
        }
        true
    }

    /// An operation has ended. Whether a task waits for it does not matter.
    pub(crate) fn on_end(&self, ended: &Ended) {
        if let Some(transfer) = self.transfers.take(ended) {
            self.end(transfer);
        }
    }

    /// Replies to what has ended.
    fn end(&self, transfer: Transfer) {
        let Transfer { unique, open, pending, rest, kind } = transfer;
        self.reply_to(unique, &open, kind, pending.wait(), rest);
    }

    fn begin_read(&self, unique: u64, open: Rc<OpenFile>, asked: &ReadAsked) -> Answer<Transfer> {
        let mut buffer = self.take_buffer()?;
        let rest = buffer.split_off((asked.size as usize).min(DATA_SIZE_MAX));
        let pending = open.file.submit_read_at(buffer, asked.offset);
        Ok(Transfer { unique, open, pending, rest, kind: Kind::Read })
    }

    fn begin_write(
        &self,
        unique: u64,
        open: Rc<OpenFile>,
        (offset, size): (u64, u32),
        mut data: RegisteredBuf,
    ) -> Transfer {
        let rest = data.split_off((size as usize).min(DATA_SIZE_MAX));
        self.nodes.borrow_mut().changed_here(open.node);
        let pending = open.file.submit_write_at(data, offset);
        Transfer { unique, open, pending, rest, kind: Kind::Write { offset } }
    }

    fn reply_to(
        &self,
        unique: u64,
        open: &OpenFile,
        kind: Kind,
        transferred: Transferred<RegisteredBuf>,
        rest: RegisteredBuf,
    ) {
        let Transferred { buffer, result } = transferred;
        match (result, kind) {
            (Ok(count), Kind::Read) => self.device.reply(unique, 0, &buffer[..count]),
            (Ok(count), Kind::Write { offset }) => {
                open.held.borrow_mut().keep(&self.copies, offset, &buffer[..count]);
                self.device.reply(unique, 0, &written(count));
            }
            (Err(error), _) => return self.device.fail(unique, data_error(error)),
        }
        self.give_back(joined(buffer, rest));
    }

    pub(super) async fn read(&self, unique: u64, asked: &ReadAsked) {
        let begun = self.opened_file(asked.file).await.and_then(|open| self.begin_read(unique, open, asked));
        match begun {
            Ok(transfer) => self.wait_for(transfer).await,
            Err(error) => self.device.fail(unique, error),
        }
    }

    async fn wait_for(&self, transfer: Transfer) {
        let Transfer { unique, open, pending, rest, kind } = transfer;
        self.reply_to(unique, &open, kind, pending.await, rest);
    }

    pub(super) async fn write(
        &self,
        unique: u64,
        (file, offset, size, flags): (u64, u64, u32, u32),
        data: RegisteredBuf,
    ) {
        let open = match self.opened_file(file).await {
            Ok(open) => open,
            Err(error) => return self.device.fail(unique, error),
        };
        let (count, data) = match self.appends(flags) {
            true => (self.append(&open, size, &data).await, data),
            false => {
                let Transfer { pending, rest, .. } =
                    self.begin_write(unique, Rc::clone(&open), (offset, size), data);
                let Transferred { buffer, result } = pending.await;
                if let Ok(count) = result {
                    open.held.borrow_mut().keep(&self.copies, offset, &buffer[..count]);
                }
                (result.map_err(data_error), joined(buffer, rest))
            }
        };
        let done = match (count, open.lasts(flags)) {
            (Ok(count), Some(data_only)) => {
                self.make_durable(std::slice::from_ref(&open), data_only).await.map(|()| count)
            }
            (count, _) => count,
        };
        match done {
            Ok(count) => {
                self.device.reply(unique, 0, &written(count));
                self.give_back(data);
            }
            Err(error) => self.device.fail(unique, error),
        }
    }

    /// Writes at the end of the file, wherever that is: the kernel's word for it is a guess.
    async fn append(&self, open: &OpenFile, size: u32, data: &RegisteredBuf) -> Answer<usize> {
        self.nodes.borrow_mut().changed_here(open.node);
        let len = (size as usize).min(DATA_SIZE_MAX);
        let at = open.file.submit_append(data[..len].to_vec()).await.map_err(data_error)?;
        open.held.borrow_mut().keep(&self.copies, at, &data[..len]);
        Ok(len)
    }

    /// A write goes to the end of the file.
    fn appends(&self, flags: u32) -> bool {
        flags & libc::O_APPEND.cast_unsigned() != 0 && !self.options.writeback
    }

    /// A descriptor is closed: what it locked in the name of this owner is given back. Data was sent when it was written.
    pub(super) async fn flush(&self, file: u64, owner: u64) -> Answer<()> {
        let open = self.open.file(file)?;
        self.unlock_all_of(open.node, owner).await;
        Ok(())
    }

    pub(super) async fn sync(&self, file: u64, data_only: bool) -> Answer<()> {
        let open = self.opened_file(file).await?;
        // Also what was written through other descriptors, some of them closed by now.
        let mut files = self.open.not_durable(Some(open.node));
        files.retain(|other| !Rc::ptr_eq(other, &open));
        files.push(open);
        self.make_durable(&files, data_only).await
    }

    /// All that was written is made durable.
    pub(super) async fn sync_all(&self) -> Answer<()> {
        self.make_durable(&self.open.not_durable(None), false).await
    }

    async fn make_durable(&self, files: &[Rc<OpenFile>], data_only: bool) -> Answer<()> {
        let mut done = Ok(());
        for open in files {
            done = done.and(self.commit(open, data_only).await);
        }
        self.open.let_go();
        done
    }

    /// Makes what was written through an open file durable. What a restart of the server has lost is written once more.
    async fn commit(&self, open: &OpenFile, data_only: bool) -> Answer<()> {
        let commit = || match data_only {
            true => open.file.submit_commit_range(0, 0, Stability::DataSync),
            false => open.file.submit_commit(),
        };
        // What is written meanwhile is for the next one.
        let mut held = open.held.take();
        if held.is_lost {
            held.release(&self.copies);
            return Err(Errno::IO);
        }
        let done = match commit().await {
            Err(Error::WritesLost { ranges, attributes: false, .. }) => match held.of(&ranges) {
                Some(again) => self.write_again(open, again).await.and(commit().await.map_err(Errno::from)),
                None => Err(Errno::IO),
            },
            Err(error @ (Error::Connection { .. } | Error::TimedOut { .. })) => {
                // It may still become durable.
                held.join(open.held.take());
                *open.held.borrow_mut() = held;
                return Err(error.into());
            }
            done => done.map_err(Errno::from),
        };
        held.release(&self.copies);
        done
    }

    /// Makes files durable that no program has open any more, so that they need not stay open at the server; whether some need not.
    async fn shed(&self) -> bool {
        for open in self.open.lingering_longest() {
            let is_failed = self.commit(&open, false).await.is_err();
            if is_failed && !open.held.borrow().any {
                open.held.borrow_mut().lose(&self.copies);
            }
        }
        self.open.let_go()
    }

    /// As [`Volume::with_room`]. When there are no handles to give back, files are given back that programs have closed.
    pub(super) async fn with_room_for_file<T, P>(&self, begin: impl Fn() -> P) -> dafs_client::Result<T>
    where
        P: Future<Output = dafs_client::Result<T>>,
    {
        loop {
            match self.with_room(&begin).await {
                Err(Error::Status { status: Status::TOO_MANY_OPEN, .. }) if self.shed().await => {}
                done => return done,
            }
        }
    }

    async fn write_again(&self, open: &OpenFile, writes: Vec<(u64, Vec<u8>)>) -> Answer<()> {
        for (offset, data) in writes {
            let len = data.len();
            let Transferred { result, .. } = open.file.submit_write_at(data, offset).await;
            if result.map_err(data_error)? < len {
                return Err(Errno(libc::ENOSPC));
            }
        }
        Ok(())
    }

    pub(super) async fn copy(&self, asked: &CopyAsked) -> Answer<Vec<u8>> {
        let (source, target) = (self.opened_file(asked.source).await?, self.opened_file(asked.target).await?);
        if source.caller.number != target.caller.number {
            return Err(Errno::CROSS_DEVICE);
        }
        let len = asked.len.min(COPY_SIZE_MAX);
        if len == 0 {
            return Ok(Fields::new().u32(0).u32(0).into_bytes());
        }
        self.nodes.borrow_mut().changed_here(target.node);
        target.held.borrow_mut().give_up(&self.copies);
        let copied =
            source.file.submit_copy_some(asked.source_offset, len, &target.file, asked.target_offset).await?;
        let count = u32::try_from(copied.count).unwrap_or(u32::MAX);
        Ok(Fields::new().u32(count).u32(0).into_bytes())
    }
}

/// The kernel takes the number of bytes copied in 32 bits.
const COPY_SIZE_MAX: u64 = 1 << 30;

/// The reply that tells how much was written.
fn written(count: usize) -> [u8; 8] {
    let mut reply = [0; 8];
    reply[..4].copy_from_slice(&u32::try_from(count).unwrap_or(u32::MAX).to_ne_bytes());
    reply
}

/// The whole of a buffer that a part was cut from.
fn joined(mut first: RegisteredBuf, rest: RegisteredBuf) -> RegisteredBuf {
    let _ = first.unsplit(rest);
    first
}

/// A read or write that another's mandatory lock forbids has no word of its own in POSIX.
fn data_error(error: Error) -> Errno {
    match error {
        Error::Status { status: Status::LOCKED, .. } => Errno::IO,
        error => error.into(),
    }
}
