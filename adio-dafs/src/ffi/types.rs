//! What pointers of C become.

use std::ffi::{c_char, c_int};

use dafs_client::Direction;
pub(super) use dafs_ffi::{bytes_out, put, slice, text as name};
use smallvec::SmallVec;

use super::abi::{
    ADIO_DAFS_READ, ADIO_DAFS_WRITE, adio_dafs_hint, adio_dafs_segment, adio_dafs_transfer, adio_dafs_type,
    adio_dafs_view,
};
use super::guard::argument;
use crate::error::Result;
use crate::file::Transfer;
use crate::layout::{Instances, Segment, Source, Type, View};

/// Hints that are no text are none that this library knows: they are left out.
///
/// # Safety
/// As of [`slice`] and [`name`].
pub(super) unsafe fn hints<'a>(
    first: *const adio_dafs_hint,
    count: usize,
) -> Result<Vec<(&'a str, &'a str)>> {
    // SAFETY: promised by the caller.
    let hints = unsafe { slice(first, count) }?;
    let mut texts = Vec::with_capacity(hints.len());
    for hint in hints {
        // SAFETY: promised by the caller.
        let (key, value) = unsafe { (name(hint.key)?, name(hint.value)?) };
        texts.extend(key.to_str().zip(value.to_str()));
    }
    Ok(texts)
}

/// Writes a string with an ending zero; what does not fit is cut.
///
/// # Safety
/// There is room for `capacity` bytes.
pub(super) unsafe fn put_text(text: &str, to: *mut c_char, capacity: usize) -> Result<()> {
    let Some(room) = capacity.checked_sub(1) else { return Err(argument("there is no room for a string")) };
    let mut len = text.len().min(room);
    while !text.is_char_boundary(len) {
        len -= 1;
    }
    // SAFETY: promised by the caller.
    unsafe {
        bytes_out(&text.as_bytes()[..len], to.cast::<u8>())?;
        Ok(bytes_out(&[0], to.cast::<u8>().wrapping_add(len))?)
    }
}

/// # Safety
/// Its arrays are there and nobody writes them meanwhile.
unsafe fn datatype<'a>(of: &adio_dafs_type) -> Result<Type<'a>> {
    // SAFETY: promised by the caller.
    let (offsets, lens) = unsafe { (slice(of.offsets, of.count)?, slice(of.lens, of.count)?) };
    Ok(Type::new(offsets, lens, of.extent)?)
}

/// # Safety
/// It is null, or a view as [`datatype`] says.
pub(super) unsafe fn view<'a>(view: *const adio_dafs_view) -> Result<View<'a>> {
    // SAFETY: promised by the caller.
    let view = unsafe { view.as_ref() }.ok_or_else(|| argument("no view"))?;
    // SAFETY: promised by the caller.
    Ok(View { displacement: view.displacement, of: unsafe { datatype(&view.r#type) }? })
}

pub(super) fn direction(number: c_int) -> Result<Direction> {
    match number {
        ADIO_DAFS_READ => Ok(Direction::Read),
        ADIO_DAFS_WRITE => Ok(Direction::Write),
        other => Err(argument(format!("direction {other}: it is ADIO_DAFS_READ or ADIO_DAFS_WRITE"))),
    }
}

/// # Safety
/// It is null, or a transfer whose arrays are there, and whose memory is as [`Transfer::new`] says.
pub(super) unsafe fn transfer<'a>(transfer: *const adio_dafs_transfer) -> Result<Transfer<'a>> {
    // SAFETY: promised by the caller.
    let transfer = unsafe { transfer.as_ref() }.ok_or_else(|| argument("no transfer"))?;
    let direction = direction(transfer.direction)?;
    let source = match transfer.segments.is_null() && !transfer.memory.is_null() {
        // SAFETY: promised by the caller.
        true => unsafe { typed(transfer) }?,
        // SAFETY: promised by the caller.
        false => Source::Segments(unsafe { segments(transfer) }?),
    };
    // SAFETY: promised by the caller.
    Ok(unsafe { Transfer::new(direction, transfer.collective != 0, source) })
}

/// # Safety
/// As of [`transfer`].
unsafe fn segments(transfer: &adio_dafs_transfer) -> Result<SmallVec<[Segment; 1]>> {
    // SAFETY: promised by the caller.
    let segments = unsafe { slice(transfer.segments, transfer.segment_count) }?;
    let own = |segment: &adio_dafs_segment| Segment {
        // Read and written by address alone.
        address: segment.memory.expose_provenance(),
        offset: segment.offset,
        len: segment.len,
    };
    Ok(segments.iter().map(own).collect())
}

/// # Safety
/// As of [`transfer`]; its memory is not null.
unsafe fn typed<'a>(transfer: &adio_dafs_transfer) -> Result<Source<'a>> {
    // SAFETY: promised by the caller.
    let memory = unsafe { transfer.memory.as_ref() }.ok_or_else(|| argument("no memory"))?;
    Ok(Source::Typed {
        memory: Instances {
            base: memory.base.expose_provenance(),
            count: memory.count,
            // SAFETY: promised by the caller.
            of: unsafe { datatype(&memory.r#type) }?,
        },
        // SAFETY: promised by the caller.
        view: unsafe { view(transfer.view) }?,
        position: transfer.position,
    })
}
