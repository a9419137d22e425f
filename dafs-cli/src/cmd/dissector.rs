//! `dafs dissector`. The script is part of the program, as `cargo install` installs nothing but programs.

use std::process::ExitCode;

use crate::output::Output;
use crate::report::Result;

const DISSECTOR: &str = include_str!("../../dafs.lua");

pub(crate) fn run() -> Result<ExitCode> {
    let mut out = Output::new();
    out.text(DISSECTOR)?;
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}
