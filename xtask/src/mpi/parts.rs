//! The shared libraries that the glue is compiled to.

/// One of them.
#[derive(Debug)]
pub(super) struct Part {
    /// Below DIR/lib.
    pub(super) target: &'static str,
    /// Directories or files below adio-dafs/c.
    pub(super) sources: &'static [&'static str],
    /// Of the compiler, besides those of all parts.
    pub(super) flags: &'static [&'static str],
    /// Where it finds the driver.
    pub(super) rpath: &'static str,
}

pub(super) const PARTS: &[Part] = &[];
