//! Views: datatypes as of MPI, which the server keeps, and transfers of what they show of a file.
#![allow(unsafe_code, reason = "pointers of C callers")]
#![allow(clippy::missing_safety_doc, reason = "the header is the contract")]

use std::ffi::c_int;
use std::num::NonZeroU64;

use dafs_client::{
    ArrayOrder, Block, DarrayDimension, Datatype, Distribution, SubarrayDimension, VIEW_NODES_MAX, View,
    ViewPlace,
};
use dafs_ffi::{put, slice};

use crate::abi::{
    DAFS_DISTRIBUTE_BLOCK, DAFS_DISTRIBUTE_CYCLIC, DAFS_DISTRIBUTE_NONE, DAFS_ORDER_C, DAFS_ORDER_FORTRAN,
    dafs_block, dafs_darray, dafs_op, dafs_struct_block, dafs_subarray, dafs_view_place,
};
use crate::call::{Result, bad_handle, done, handle_of, invalid, run, sized_ref, with_file, with_session};
use crate::file::{count_of, memory_of, memory_of_mut};
use crate::memory::one_registered;
use crate::object::{self, Object};
use crate::op::{signed, submit, with_file as op_of};

/// Types say where data lies, as the datatypes of MPI do; each is made of an earlier one, and dafs_view_make() makes a view of the last.
/// This one is bytes side by side. Returns its handle, or -1; close it by dafs_close(). Whether it contradicts itself is said when a view
/// is made. Does not block, as all calls that make types.
#[unsafe(no_mangle)]
pub extern "C" fn dafs_type_bytes(len: u64) -> i64 {
    run(|| handle_of(Object::Type(Datatype::bytes(len))))
}

/// Copies of a type side by side.
#[unsafe(no_mangle)]
pub extern "C" fn dafs_type_contiguous(of: i64, count: u64) -> i64 {
    made_of(of, |of| Ok(of.contiguous(count)))
}

/// Blocks of block_len copies, stride copies apart.
#[unsafe(no_mangle)]
pub extern "C" fn dafs_type_vector(of: i64, count: u64, block_len: u64, stride: i64) -> i64 {
    made_of(of, |of| Ok(of.vector(count, block_len, stride)))
}

/// Blocks of block_len copies, stride bytes apart.
#[unsafe(no_mangle)]
pub extern "C" fn dafs_type_hvector(of: i64, count: u64, block_len: u64, stride: i64) -> i64 {
    made_of(of, |of| Ok(of.hvector(count, block_len, stride)))
}

/// Blocks at displacements in copies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dafs_type_indexed(of: i64, blocks: *const dafs_block, count: usize) -> i64 {
    // SAFETY: an array of the caller's, by the contract.
    made_of(of, |of| Ok(of.indexed(&unsafe { blocks_of(blocks, count) }?)))
}

/// Blocks at displacements in bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dafs_type_hindexed(of: i64, blocks: *const dafs_block, count: usize) -> i64 {
    // SAFETY: an array of the caller's, by the contract.
    made_of(of, |of| Ok(of.hindexed(&unsafe { blocks_of(blocks, count) }?)))
}

/// Blocks of block_len copies at displacements in copies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dafs_type_indexed_block(
    of: i64,
    block_len: u64,
    displacements: *const i64,
    count: usize,
) -> i64 {
    // SAFETY: an array of the caller's, by the contract.
    made_of(of, |of| Ok(of.indexed_block(block_len, unsafe { slice(displacements, count) }?)))
}

/// Blocks of block_len copies at displacements in bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dafs_type_hindexed_block(
    of: i64,
    block_len: u64,
    displacements: *const i64,
    count: usize,
) -> i64 {
    // SAFETY: an array of the caller's, by the contract.
    made_of(of, |of| Ok(of.hindexed_block(block_len, unsafe { slice(displacements, count) }?)))
}

/// Blocks of different types, at displacements in bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dafs_type_struct(blocks: *const dafs_struct_block, count: usize) -> i64 {
    run(|| {
        // SAFETY: an array of the caller's, by the contract.
        let blocks = unsafe { slice(blocks, count) }?;
        let mut types = Vec::new();
        let mut nodes = 0;
        for block in blocks {
            let of = type_of(block.of)?;
            nodes += of.nodes().len();
            check_nodes(nodes)?;
            types.push(of);
        }
        let blocks = blocks.iter().zip(&types);
        let blocks: Vec<_> = blocks.map(|(block, of)| (block.len, block.displacement, of)).collect();
        handle_of(Object::Type(Datatype::structure(&blocks)))
    })
}

/// A part of an array of a type: DAFS_ORDER_C or DAFS_ORDER_FORTRAN, and its dimensions. The tile is all of the array.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dafs_type_subarray(
    of: i64,
    order: c_int,
    dimensions: *const dafs_subarray,
    count: usize,
) -> i64 {
    made_of(of, |of| {
        // SAFETY: an array of the caller's, by the contract.
        let dimensions = unsafe { slice(dimensions, count) }?;
        let dimension =
            |of: &dafs_subarray| SubarrayDimension { size: of.size, subsize: of.subsize, start: of.start };
        let dimensions: Vec<_> = dimensions.iter().map(dimension).collect();
        Ok(of.subarray(order_of(order)?, &dimensions))
    })
}

/// What process rank of size has of an array that is dealt out to a grid of processes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dafs_type_darray(
    of: i64,
    size: u32,
    rank: u32,
    order: c_int,
    dimensions: *const dafs_darray,
    count: usize,
) -> i64 {
    made_of(of, |of| {
        // SAFETY: an array of the caller's, by the contract.
        let dimensions = unsafe { slice(dimensions, count) }?;
        let dimensions: Vec<_> = dimensions.iter().map(dimension_of).collect::<Result<_>>()?;
        Ok(of.darray(size, rank, order_of(order)?, &dimensions))
    })
}

/// The same data with other bounds: the lower one and the extent, bytes. What is beside it begins an extent behind.
#[unsafe(no_mangle)]
pub extern "C" fn dafs_type_resized(of: i64, lower: i64, extent: i64) -> i64 {
    made_of(of, |of| Ok(of.resized(lower, extent)))
}

/// Describes a view to the server, for all files of the session: where the data of a type lies in a file. Requests that use it have a
/// constant size, whatever the number of pieces. Returns its handle, or -1; close it by dafs_close(). EINVAL where the type contradicts
/// itself, and EOPNOTSUPP where the server knows no views. Blocks.
#[unsafe(no_mangle)]
pub extern "C" fn dafs_view_make(session: i64, of: i64) -> i64 {
    run(|| {
        let of = type_of(of)?;
        handle_of(Object::View(with_session(session, |session| Ok(session.view(&of)?))?))
    })
}

/// Bytes of data in a tile of the view. Does not block.
#[unsafe(no_mangle)]
pub extern "C" fn dafs_view_size(view: i64) -> i64 {
    run(|| with_view(view, |view| i64::try_from(view.size()).map_err(|_| invalid("a size beyond what fits"))))
}

/// From one tile to the next, bytes: 0, and the extent in *extent. Does not block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dafs_view_extent(view: i64, extent: *mut i64) -> c_int {
    done(|| {
        // SAFETY: room for a number, by the contract.
        let place = unsafe { put(extent) }?;
        with_view(view, |view| {
            *place = view.extent();
            Ok(())
        })
    })
}

/// Reads what a view shows of a file from a place on, into a list of pieces of memory: byte n of the memory is byte n of the view's data
/// behind the place. Returns the bytes read from there without a gap; fewer than the memory holds only where the file ends. Blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dafs_view_read(
    file: i64,
    place: *const dafs_view_place,
    iov: *const libc::iovec,
    iov_count: c_int,
) -> isize {
    run(|| {
        // SAFETY: a struct, an array and memory of the caller's, by the contract.
        let (place, memory) = unsafe { (place_of(place)?, memory_of_mut(iov, iov_count)?) };
        with_view(place.view, |view| {
            with_file(file, |file| {
                match one_registered(file, memory.iter().map(|&(first, len)| (first.cast_const(), len))) {
                    Some(mut buffer) => count_of(file.read_view_buf(&from(view, &place), &mut buffer)?.count),
                    // SAFETY: memory of the caller's, by the contract.
                    None => count_of(unsafe { file.read_view_raw(&from(view, &place), memory) }?.count),
                }
            })
        })
    })
}

/// Writes a list of pieces of memory to what a view shows of a file from a place on. Returns the bytes written without a gap. Blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dafs_view_write(
    file: i64,
    place: *const dafs_view_place,
    iov: *const libc::iovec,
    iov_count: c_int,
) -> isize {
    run(|| {
        // SAFETY: a struct, an array and memory of the caller's, by the contract.
        let (place, memory) = unsafe { (place_of(place)?, memory_of(iov, iov_count)?) };
        with_view(place.view, |view| {
            with_file(file, |file| match one_registered(file, memory.iter().copied()) {
                Some(buffer) => count_of(file.write_view_buf(&from(view, &place), &buffer)?),
                // SAFETY: memory of the caller's, by the contract.
                None => count_of(unsafe { file.write_view_raw(&from(view, &place), memory) }?),
            })
        })
    })
}

/// Nonblocking form of dafs_view_read(). The place and the array are copied; the memory is the operation's until it has ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dafs_submit_view_read(
    file: i64,
    place: *const dafs_view_place,
    iov: *const libc::iovec,
    iov_count: c_int,
    op: *mut dafs_op,
) -> c_int {
    let begin = op_of(file, |file| {
        // SAFETY: a struct, an array and memory of the caller's, by the contract.
        let (place, memory) = unsafe { (place_of(place)?, memory_of_mut(iov, iov_count)?) };
        with_view(place.view, |view| {
            let place = from(view, &place);
            Ok(match one_registered(file, memory.iter().map(|&(first, len)| (first.cast_const(), len))) {
                Some(buffer) => file.submit_read_view(&place, buffer).map(|moved| Ok(signed(moved.result?))),
                None => {
                    // SAFETY: the memory stays the operation's, by the contract.
                    unsafe { file.submit_read_view_raw(&place, memory) }.map(|read| Ok(signed(read?.count)))
                }
            })
        })
    });
    // SAFETY: an operation of the caller's, by the contract.
    unsafe { submit(op, begin) }
}

/// Nonblocking form of dafs_view_write(), as dafs_submit_view_read().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dafs_submit_view_write(
    file: i64,
    place: *const dafs_view_place,
    iov: *const libc::iovec,
    iov_count: c_int,
    op: *mut dafs_op,
) -> c_int {
    let begin = op_of(file, |file| {
        // SAFETY: a struct, an array and memory of the caller's, by the contract.
        let (place, memory) = unsafe { (place_of(place)?, memory_of(iov, iov_count)?) };
        with_view(place.view, |view| {
            let place = from(view, &place);
            Ok(match one_registered(file, memory.iter().copied()) {
                Some(buffer) => file.submit_write_view(&place, buffer).map(|moved| Ok(signed(moved.result?))),
                None => {
                    // SAFETY: the memory stays the operation's, by the contract.
                    unsafe { file.submit_write_view_raw(&place, memory) }.map(|written| Ok(signed(written?)))
                }
            })
        })
    });
    // SAFETY: an operation of the caller's, by the contract.
    unsafe { submit(op, begin) }
}

fn made_of(of: i64, make: impl FnOnce(Datatype) -> Result<Datatype>) -> i64 {
    run(|| {
        let made = make(type_of(of)?)?;
        check_nodes(made.nodes().len())?;
        handle_of(Object::Type(made))
    })
}

/// No more than a view may have, so that a type in a loop stays small.
fn check_nodes(count: usize) -> Result<()> {
    match count <= VIEW_NODES_MAX {
        true => Ok(()),
        false => Err(invalid(format!("a type of {count} parts: the limit is {VIEW_NODES_MAX}"))),
    }
}

fn type_of(handle: i64) -> Result<Datatype> {
    match object::find(handle).as_deref() {
        Some(Object::Type(of)) => Ok(of.clone()),
        _ => Err(bad_handle(handle, "a type")),
    }
}

fn with_view<T>(handle: i64, body: impl FnOnce(&View) -> Result<T>) -> Result<T> {
    match object::find(handle).as_deref() {
        Some(Object::View(view)) => body(view),
        _ => Err(bad_handle(handle, "a view")),
    }
}

/// # Safety
/// Null, or a place of the size that it says.
unsafe fn place_of(place: *const dafs_view_place) -> Result<dafs_view_place> {
    // SAFETY: promised by the caller; it is only read.
    Ok(*unsafe { sized_ref(place, "DAFS_VIEW_PLACE_INIT") }?)
}

fn from<'a>(view: &'a View, place: &dafs_view_place) -> ViewPlace<'a> {
    let from = view.at(place.displacement, place.place);
    match place.group_size {
        0 => from,
        size => from.in_group(place.group, size),
    }
}

/// # Safety
/// As of [`slice`].
unsafe fn blocks_of(blocks: *const dafs_block, count: usize) -> Result<Vec<Block>> {
    // SAFETY: promised by the caller.
    let blocks = unsafe { slice(blocks, count) }?;
    Ok(blocks.iter().map(|of| Block { len: of.len, displacement: of.displacement }).collect())
}

fn order_of(order: c_int) -> Result<ArrayOrder> {
    match order {
        DAFS_ORDER_C => Ok(ArrayOrder::C),
        DAFS_ORDER_FORTRAN => Ok(ArrayOrder::Fortran),
        other => Err(invalid(format!("order {other}: DAFS_ORDER_C or DAFS_ORDER_FORTRAN"))),
    }
}

fn dimension_of(of: &dafs_darray) -> Result<DarrayDimension> {
    let block = NonZeroU64::new(of.block);
    let distribution = match of.distribution {
        DAFS_DISTRIBUTE_NONE => Distribution::None,
        DAFS_DISTRIBUTE_BLOCK => Distribution::Block(block),
        DAFS_DISTRIBUTE_CYCLIC => Distribution::Cyclic(block),
        other => return Err(invalid(format!("distribution {other}: it is one of DAFS_DISTRIBUTE_…"))),
    };
    Ok(DarrayDimension { size: of.size, distribution, processes: of.processes })
}
