//! In place of the limits over RDMA, in a build without it.

use anyhow::bail;

use crate::limit::Stage;
use crate::load::{Load, Work};
use crate::stats::Samples;

/// Which way data goes.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Way {
    Write,
    Read,
}

pub(crate) fn request_response(_: &Load, _: &Stage<'_>, _: bool, _: &mut Samples) -> anyhow::Result<Work> {
    bail!("{MISSING}")
}

pub(crate) fn stream(_: &Load, _: &Stage<'_>, _: Way, _: &mut Samples) -> anyhow::Result<Work> {
    bail!("{MISSING}")
}

const MISSING: &str =
    "this dafs-bench was built without RDMA: build it with --features dafs-bench/verbs,dafs-server/verbs";
