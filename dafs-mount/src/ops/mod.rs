//! The requests of the kernel, carried out: an `async fn` for each, which asks the server and replies.

mod attributes;
mod data;
mod directories;
mod locks;
mod names;
mod opening;
mod space;
mod xattrs;

use std::rc::Rc;

use dafs_client::RegisteredBuf;
use futures_util::future::{Either, select};

use crate::kernel::errno::Errno;
use crate::kernel::request::{Header, Request};
use crate::volume::Volume;

/// Carries out a request and replies to it. `data` is what a write brings.
pub(crate) async fn serve(volume: Rc<Volume>, asks: Header, request: Request, data: Option<RegisteredBuf>) {
    let (volume, unique) = (&*volume, asks.unique);
    if !only_looks(&request) {
        return carry_out(volume, asks, request, data).await;
    }
    // While the server is away it may be given up: it changes nothing.
    let interrupted = volume.interruptible(unique, true);
    let carried_out = std::pin::pin!(carry_out(volume, asks, request, data));
    if let Either::Right(_) = select(carried_out, interrupted).await {
        volume.device.fail(unique, Errno::INTERRUPTED);
    }
    volume.not_interruptible(unique);
}

/// A request that changes nothing.
fn only_looks(request: &Request) -> bool {
    matches!(
        request,
        Request::Lookup { .. }
            | Request::Getattr { .. }
            | Request::Readlink
            | Request::Statfs
            | Request::Getxattr { .. }
            | Request::Listxattr { .. }
            | Request::Access { .. }
            | Request::Read(_)
    )
}

async fn carry_out(volume: &Volume, asks: Header, request: Request, data: Option<RegisteredBuf>) {
    let unique = asks.unique;
    let device = &volume.device;
    match request {
        Request::Lookup { name } => device.answer(unique, volume.look_up(&asks, &name).await),
        Request::Forget { of } => volume.forget(&of),
        Request::Getattr { file } => device.answer(unique, volume.get_attributes(&asks, file).await),
        Request::Setattr(asked) => device.answer(unique, volume.set_attributes(&asks, &asked).await),
        Request::Readlink => device.answer(unique, volume.read_link(&asks).await),
        Request::Symlink { name, target } => {
            device.answer(unique, volume.symlink(&asks, &name, &target).await)
        }
        Request::Mknod { name, mode, device: number } => {
            device.answer(unique, volume.make_node(&asks, &name, mode, number).await);
        }
        Request::Mkdir { name, mode } => {
            device.answer(unique, volume.make_directory(&asks, &name, mode).await)
        }
        Request::Unlink { name } => device.finish(unique, volume.remove(&asks, &name, false).await),
        Request::Rmdir { name } => device.finish(unique, volume.remove(&asks, &name, true).await),
        Request::Rename { from, directory, to, flags } => {
            device.finish(unique, volume.rename(&asks, &from, (directory, &to), flags).await);
        }
        Request::Link { of, name } => device.answer(unique, volume.link(&asks, of, &name).await),
        Request::Open { flags } => device.answer(unique, volume.open_file(&asks, flags).await),
        Request::Create { name, flags, mode } => {
            device.answer(unique, volume.create(&asks, &name, flags, mode).await);
        }
        Request::Tmpfile { mode } => device.answer(unique, volume.create_unnamed(&asks, mode).await),
        Request::Read(asked) => volume.read(unique, &asked).await,
        Request::Write { file, offset, size, flags } => match data {
            Some(data) => volume.write(unique, (file, offset, size, flags), data).await,
            None => device.fail(unique, Errno::IO),
        },
        Request::Statfs => device.answer(unique, volume.statistics(&asks).await),
        Request::Release { file } => device.finish(unique, volume.release(file)),
        Request::Flush { file, owner } => device.finish(unique, volume.flush(file, owner).await),
        Request::Fsync { file, data_only } => device.finish(unique, volume.sync(file, data_only).await),
        Request::Setxattr { name, value, flags } => {
            device.finish(unique, volume.set_xattr(&asks, &name, &value, flags).await);
        }
        Request::Getxattr { name, size } => device.answer(unique, volume.xattr(&asks, &name, size).await),
        Request::Listxattr { size } => device.answer(unique, volume.xattrs(&asks, size).await),
        Request::Removexattr { name } => device.finish(unique, volume.remove_xattr(&asks, &name).await),
        Request::Opendir => device.answer(unique, volume.open_directory(&asks).await),
        Request::Readdir { of, with_attributes } => {
            device.answer(unique, volume.read_directory(&of, with_attributes).await);
        }
        Request::Releasedir { directory } => {
            volume.open.remove_directory(directory);
            device.finish(unique, Ok(()));
        }
        Request::Fsyncdir { directory } => device.finish(unique, volume.sync_directory(directory).await),
        Request::TestLock(lock) => device.answer(unique, volume.test_lock(&lock).await),
        Request::Lock { lock, waits } => {
            let interrupted = waits.then(|| volume.interruptible(unique, false));
            device.finish(unique, volume.lock(&lock, interrupted).await);
            volume.not_interruptible(unique);
        }
        Request::Access { mask } => device.finish(unique, volume.access(&asks, mask).await),
        Request::Interrupt { unique } => volume.interrupt(unique),
        Request::Destroy => device.finish(unique, Ok(())),
        Request::Ioctl => device.fail(unique, Errno::NOT_A_TERMINAL),
        Request::Allocate { file, offset, len, mode } => {
            device.finish(unique, volume.allocate(file, (offset, len), mode).await);
        }
        Request::Seek { file, offset, whence } => {
            device.answer(unique, volume.seek(file, offset, whence).await);
        }
        Request::Copy(asked) => device.answer(unique, volume.copy(&asked).await),
        Request::Syncfs => device.finish(unique, volume.sync_all().await),
        Request::Unknown => device.fail(unique, Errno::NO_SYSTEM_CALL),
    }
}
