//! What pointers of C become. Each says what its caller has promised.
#![allow(unsafe_code, reason = "pointers of C callers")]

use std::ffi::{CStr, OsStr, c_char};
use std::os::unix::ffi::OsStrExt;

/// A pointer that cannot be: why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadPointer(pub String);

/// The place for a result.
///
/// # Safety
/// It is null, or may be written, and by nobody else meanwhile.
///
/// # Errors
/// It is null, or not aligned.
pub unsafe fn put<'a, T>(place: *mut T) -> Result<&'a mut T, BadPointer> {
    check_aligned(place)?;
    // SAFETY: promised by the caller.
    unsafe { place.as_mut() }.ok_or_else(|| BadPointer("a pointer for a result is null".into()))
}

/// An array.
///
/// # Safety
/// It is null, or an array of so many that nobody writes meanwhile.
///
/// # Errors
/// It is null and not empty, not aligned, or larger than memory can be.
pub unsafe fn slice<'a, T>(first: *const T, count: usize) -> Result<&'a [T], BadPointer> {
    if count == 0 {
        return Ok(&[]);
    }
    check_array(first, count)?;
    // SAFETY: promised by the caller.
    Ok(unsafe { std::slice::from_raw_parts(first, count) })
}

/// An array to be written.
///
/// # Safety
/// It is null, or an array of so many that nobody else uses meanwhile.
///
/// # Errors
/// As of [`slice()`].
pub unsafe fn slice_mut<'a, T>(first: *mut T, count: usize) -> Result<&'a mut [T], BadPointer> {
    if count == 0 {
        return Ok(&mut []);
    }
    check_array(first, count)?;
    // SAFETY: promised by the caller.
    Ok(unsafe { std::slice::from_raw_parts_mut(first, count) })
}

fn check_aligned<T>(pointer: *const T) -> Result<(), BadPointer> {
    match pointer.is_aligned() {
        true => Ok(()),
        false => Err(BadPointer("a pointer is not aligned".into())),
    }
}

fn check_array<T>(first: *const T, count: usize) -> Result<(), BadPointer> {
    check_aligned(first)?;
    match first.is_null() || count > isize::MAX as usize / size_of::<T>().max(1) {
        true => Err(BadPointer(format!("an array of {count} is null or too large"))),
        false => Ok(()),
    }
}

/// A string: bytes, not necessarily text.
///
/// # Safety
/// It is null, or a string with an ending zero that nobody writes meanwhile.
///
/// # Errors
/// It is null.
pub unsafe fn text<'a>(text: *const c_char) -> Result<&'a OsStr, BadPointer> {
    if text.is_null() {
        return Err(BadPointer("a name is null".into()));
    }
    // SAFETY: promised by the caller.
    Ok(OsStr::from_bytes(unsafe { CStr::from_ptr(text) }.to_bytes()))
}

/// Copies to an array of the caller's.
///
/// # Safety
/// There is room for all of it, or the pointer is null.
///
/// # Errors
/// It is null.
pub unsafe fn bytes_out<T: Copy>(from: &[T], to: *mut T) -> Result<(), BadPointer> {
    if to.is_null() {
        return Err(BadPointer("a pointer for a result is null".into()));
    }
    // SAFETY: promised by the caller; the source is this library's own.
    unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) };
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn null_and_odd_and_too_large_arrays_are_refused() {
        let numbers = [1_u64, 2, 3];
        let first = numbers.as_ptr();
        let odd = first.cast::<u8>().wrapping_add(1).cast::<u64>();
        // SAFETY: refused, or the array above.
        unsafe {
            assert_eq!(slice(first, 3).unwrap(), numbers);
            assert!(slice::<u64>(std::ptr::null(), 0).unwrap().is_empty());
            assert!(slice::<u64>(std::ptr::null(), 1).is_err() && slice(odd, 2).is_err());
            assert!(slice(first, isize::MAX as usize / 8 + 1).is_err());
            assert!(put::<u64>(std::ptr::null_mut()).is_err() && put(odd.cast_mut()).is_err());
        }
    }
}
