//! RDMA of the shm provider: copies into and out of the peer's memory, done at once.

use std::io;
use std::sync::Arc;

use smallvec::SmallVec;

use super::super::util::{check_rdma, copy_through_kernel};
use super::super::{
    Access, Completion, LocalSegments, MemoryRef, OpToken, PeerFault, PostError, Posted, PostedList,
    RegionFault, RemoteRange, TransportError,
};
use super::cma::{LocalParts, REMOTE_PARTS_MAX, RemotePart, Way, remote_part};
use super::endpoint::{CONTROL_BEFORE_VERDICT, ShmEndpoint};
use super::handshake::malformed;
use super::map::Mapping;
use super::remote::{Loan, Resolved, Unreachable};

/// Segments in one gather or scatter list.
pub(super) const SEGMENTS_MAX: u16 = 64;
/// Largest single operation, bytes: it is done within the call that posts it.
pub(super) const RDMA_SIZE_MAX: u32 = 16 << 20;

impl ShmEndpoint {
    /// As `RdmaLists`: ranges of one region that follow each other are one copy.
    pub(super) fn copy_list(
        &mut self,
        way: Way,
        token: OpToken,
        local: &MemoryRef,
        remote: &[RemoteRange],
    ) -> Result<PostedList, PostError> {
        let Some(first) = remote.first() else { return Err(PostError::Invalid("a list of no ranges")) };
        let mut len = 0u64;
        let fits = |range: &&RemoteRange| {
            len = len.saturating_add(range.len);
            range.key == first.key && len <= u64::from(RDMA_SIZE_MAX)
        };
        let count = remote.iter().take(REMOTE_PARTS_MAX).take_while(fits).count().max(1);
        let run = &remote[..count];
        // Nothing that lies beyond all memory goes together with something else.
        let (run, cover) = RemoteRange::covering(run).map_or((&remote[..1], *first), |cover| (run, cover));
        let len = run.iter().map(|range| range.len).sum::<u64>();
        let whole = RemoteRange { len, ..*first };
        let part = usize::try_from(len).ok().and_then(|len| local.slice(0, len));
        let local = LocalSegments::from_iter([part.ok_or(PostError::Invalid("less memory than ranges"))?]);
        self.check_post(&local, &whole)?;
        let result = self.copy(way, &local, run, &cover);
        if result.as_ref().is_err_and(TransportError::is_local_fault) {
            return Err(PostError::Faulted);
        }
        let posted = self.complete(token, result);
        Ok(PostedList { ranges: run.len(), ..PostedList::from(posted) })
    }

    pub(super) fn check_post(&self, local: &[MemoryRef], remote: &RemoteRange) -> Result<(), PostError> {
        if !self.is_open() {
            return Err(PostError::Closed);
        }
        check_rdma(&self.capabilities, local, remote).map(drop)
    }

    pub(super) fn complete(&mut self, token: OpToken, result: Result<(), TransportError>) -> Posted {
        let Err(error) = &result else { return Posted::Done };
        // Nothing that is posted behind it may reach the peer, which would take it for done.
        self.fail(match error {
            TransportError::Closed => TransportError::Closed,
            TransportError::Peer(fault) => TransportError::Peer(fault.clone()),
            TransportError::System { what, source } => {
                let again =
                    source.raw_os_error().map_or_else(|| source.kind().into(), io::Error::from_raw_os_error);
                TransportError::system(what, again)
            }
        });
        self.completions.push_back(Completion { token, result });
        Posted::Pending
    }

    /// Finds the peer's memory and begins an access to it.
    pub(super) fn reach(
        &mut self,
        remote: &RemoteRange,
        access: Access,
    ) -> Result<(Resolved, Loan), Unreachable> {
        let loan = Loan::begin(Arc::clone(&self.connection), remote.key)
            .ok_or(Unreachable::Fault(RegionFault::UnknownKey(remote.key)))?;
        let resolved = match self.remote.resolve(&self.connection, remote, access) {
            Err(Unreachable::Unknown) => {
                // Regions come over the socket, requests through the ring: look at the socket before judging.
                self.drain_control(CONTROL_BEFORE_VERDICT);
                self.remote.resolve(&self.connection, remote, access)
            }
            resolved => resolved,
        };
        match resolved {
            Err(Unreachable::Unknown) => Err(Unreachable::Fault(RegionFault::UnknownKey(remote.key))),
            Err(other) => Err(other),
            Ok(resolved) => Ok((resolved, loan)),
        }
    }

    /// Copies between local memory, of several segments only where `run` is one range, and ranges of one region that `cover` covers.
    pub(super) fn copy(
        &mut self,
        way: Way,
        local: &LocalSegments,
        run: &[RemoteRange],
        cover: &RemoteRange,
    ) -> Result<(), TransportError> {
        let (resolved, _loan) = self.reach_for(way, cover)?;
        let len = run.iter().map(|range| range.len).sum();
        match resolved {
            Resolved::Mapped(mapping, offset) => {
                if run.len() == 1 {
                    copy_mapped(way, local, &mapping, offset)?;
                } else {
                    let mut at = 0;
                    for range in run {
                        let (skip, len) = within(cover, range);
                        let part = local[0].slice(at, len).ok_or_else(local_fault)?;
                        copy_mapped(way, &[part], &mapping, offset + skip)?;
                        at += len;
                    }
                }
            }
            Resolved::Ordinary(address) => {
                let part = |range: &RemoteRange| {
                    let (skip, len) = within(cover, range);
                    // The address is the peer's word.
                    remote_part(address.wrapping_add(skip as u64), len)
                };
                let parts: io::Result<SmallVec<[RemotePart; 4]>> = run.iter().map(part).collect();
                let parts = parts
                    .map_err(|error| TransportError::system("reach ordinary memory of the peer", error))?;
                self.copy_ordinary(way, local, &parts, len)?;
            }
        }
        self.counters.remote_copies += 1;
        self.counters.remote_bytes += len;
        Ok(())
    }

    /// Finds the memory of a copy, or says whose fault it is that it is not there.
    fn reach_for(&mut self, way: Way, remote: &RemoteRange) -> Result<(Resolved, Loan), TransportError> {
        let access = match way {
            Way::Write => Access::REMOTE_WRITE,
            Way::Read => Access::REMOTE_READ,
        };
        self.reach(remote, access).map_err(|unreachable| match unreachable {
            Unreachable::Fault(fault) => TransportError::Peer(PeerFault::Region(fault)),
            Unreachable::Unknown => TransportError::Peer(RegionFault::UnknownKey(remote.key).into()),
            Unreachable::System(source) => TransportError::system("map memory of the peer", source),
        })
    }

    fn copy_ordinary(
        &self,
        way: Way,
        local: &LocalSegments,
        remote: &[RemotePart],
        len: u64,
    ) -> Result<(), TransportError> {
        if len == 0 {
            return Ok(());
        }
        let not_permitted = || io::Error::from_raw_os_error(libc::EPERM);
        let process = self.connection.peer_process.as_ref().ok_or_else(not_permitted);
        let parts = LocalParts::of(local);
        let pipe = Some(self.connection.pipe());
        let result = process.and_then(|process| process.copy(way, pipe, &parts, remote));
        let moved = match result {
            Ok(moved) => moved as u64,
            Err(error) if error.raw_os_error() == Some(libc::EFAULT) => 0,
            // The process is gone, and its socket will say so.
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return Err(TransportError::Closed),
            Err(error) => return Err(TransportError::system("reach ordinary memory of the peer", error)),
        };
        if moved == len && local.iter().all(MemoryRef::is_there) {
            return Ok(());
        }
        if local.iter().any(|segment| segment.memory().may_fault()) {
            // Which side's memory was missing the kernel does not say; a file that shrank is the likelier.
            return Err(local_fault());
        }
        Err(TransportError::Peer(malformed("bytes of registered memory that are there", moved, len)))
    }
}

/// Where a range begins in one that covers it, and its length: both are of memory that was found.
fn within(cover: &RemoteRange, range: &RemoteRange) -> (usize, usize) {
    let fits = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
    (fits(range.offset - cover.offset), fits(range.len))
}

/// Copies between local memory and a mapping; the range was checked.
fn copy_mapped(
    way: Way,
    local: &[MemoryRef],
    mapping: &Mapping,
    mut offset: usize,
) -> Result<(), TransportError> {
    for segment in local {
        let (ours, len) = (segment.span(), segment.len());
        // Checked against the region, which the mapping covers.
        let Some(theirs) = mapping.span().slice(offset, len) else { return Err(local_fault()) };
        if segment.memory().may_fault() {
            let (from, to) = if way == Way::Write { (ours, theirs) } else { (theirs, ours) };
            let moved = copy_through_kernel(from, to)
                .map_err(|error| TransportError::system("copy memory that may fault", error))?;
            if moved != len || !segment.is_there() {
                return Err(local_fault());
            }
        } else {
            match way {
                Way::Write => theirs.copy_from(ours),
                Way::Read => ours.copy_from(theirs),
            }
        }
        offset += len;
    }
    Ok(())
}

#[cold]
fn local_fault() -> TransportError {
    TransportError::system("reach local memory of an operation", io::Error::from_raw_os_error(libc::EFAULT))
}
