//! Data: read, written, copied, made durable.

use std::rc::Rc;

use dafs_client::{Error, RegisteredBuf, Stability, Status, Transferred};

use crate::files::OpenFile;
use crate::kernel::device::DATA_SIZE_MAX;
use crate::kernel::errno::{Answer, Errno};
use crate::kernel::reply::Fields;
use crate::kernel::request::{CopyAsked, ReadAsked};
use crate::volume::Volume;

impl Volume {
    pub(super) async fn read(&self, unique: u64, asked: &ReadAsked) {
        let size = (asked.size as usize).min(DATA_SIZE_MAX);
        let (open, mut buffer) = match (self.opened_file(asked.file).await, self.take_buffer()) {
            (Ok(open), Ok(buffer)) => (open, buffer),
            (Err(error), _) => return self.device.fail(unique, error),
            (_, Err(error)) => return self.device.fail(unique, error.into()),
        };
        let rest = buffer.split_off(size);
        let Transferred { buffer, result } = open.file.submit_read_at(buffer, asked.offset).await;
        match result {
            Ok(count) => {
                self.device.reply(unique, 0, &buffer[..count]);
                self.give_back(joined(buffer, rest));
            }
            Err(error) => self.device.fail(unique, data_error(error)),
        }
    }

    pub(super) async fn write(
        &self,
        unique: u64,
        (file, offset, size, flags): (u64, u64, u32, u32),
        mut data: RegisteredBuf,
    ) {
        let open = match self.opened_file(file).await {
            Ok(open) => open,
            Err(error) => return self.device.fail(unique, error),
        };
        let rest = data.split_off((size as usize).min(DATA_SIZE_MAX));
        self.nodes.borrow_mut().changed_here(open.node);
        let appends = flags & libc::O_APPEND.cast_unsigned() != 0 && !self.options.writeback;
        let written = match appends {
            true => self.append(&open, &data).await.map(|at| (at, size, data)),
            false => {
                let Transferred { buffer, result } = open.file.submit_write_at(data, offset).await;
                result.map(|count| (offset, u32::try_from(count).unwrap_or(size), buffer)).map_err(data_error)
            }
        };
        match written {
            Ok((at, count, data)) => {
                open.held.borrow_mut().keep(&self.copies, at, &data[..count as usize]);
                self.device.reply(unique, 0, &Fields::new().u32(count).u32(0).into_bytes());
                self.give_back(joined(data, rest));
            }
            Err(error) => self.device.fail(unique, error),
        }
    }

    /// At the end of the file, wherever that is: the kernel's word for it is a guess.
    async fn append(&self, open: &OpenFile, data: &[u8]) -> Answer<u64> {
        open.file.submit_append(data.to_vec()).await.map_err(data_error)
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
