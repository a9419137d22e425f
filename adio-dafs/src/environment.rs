//! Variables of the environment. One that is empty is none: a shell has no better word for that.

use std::ffi::OsString;

/// The value of a variable, unless that is empty.
pub fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

/// The same, of what is text.
pub fn text(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}
