//! Standard output: buffered. A closed pipe is not an error.

use std::io::{self, BufWriter, IsTerminal, StdoutLock, Write};

use crate::quote::{harmless, shown};
use crate::report::{Failure, Result};

/// Prints help, or the version, and ends the process.
pub(crate) fn end_with(help: &clap::Error) -> ! {
    let mut out = Output::new();
    let text = help.render();
    let text = if out.terminal { text.ansi().to_string() } else { text.to_string() };
    let code = match out.bytes(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => 0,
        Err(failure) => failure.status(),
    };
    std::process::exit(code.into())
}

/// Standard output of a command.
pub(crate) struct Output {
    out: BufWriter<StdoutLock<'static>>,
    terminal: bool,
}

impl Output {
    pub(crate) fn new() -> Self {
        let stdout = io::stdout();
        let terminal = stdout.is_terminal();
        Self { out: BufWriter::with_capacity(64 * 1024, stdout.lock()), terminal }
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> Result<()> {
        if crate::closed::is_closed() {
            return Err(Failure::output(io::Error::from_raw_os_error(libc::EBADF)));
        }
        self.out.write_all(bytes).map_err(Failure::output)
    }

    /// Text: harmless on a terminal, as it is elsewhere.
    pub(crate) fn text(&mut self, text: &str) -> Result<()> {
        match self.terminal {
            true => self.bytes(harmless(text, true).as_bytes()),
            false => self.bytes(text.as_bytes()),
        }
    }

    pub(crate) fn line(&mut self, text: &str) -> Result<()> {
        self.text(text)?;
        self.bytes(b"\n")
    }

    /// A name: harmless on a terminal, byte for byte elsewhere.
    pub(crate) fn name(&mut self, name: &[u8]) -> Result<()> {
        match self.terminal {
            true => self.text(&shown(name)),
            false => self.bytes(name),
        }
    }

    pub(crate) fn flush(&mut self) -> Result<()> {
        self.out.flush().map_err(Failure::output)
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        // The writer would try once more, and Rust's own handling of the error would be a panic.
        let _ = self.out.flush();
    }
}
