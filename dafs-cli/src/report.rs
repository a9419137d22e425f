//! What goes wrong, said in one line: what could not be done, with what, why, and what to do.

use std::fmt;
use std::io;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use dafs_client::{Error, Status, Url};
use dafs_proto::session::HandshakeError;
pub(crate) use dafs_proto::transport::util::lock;
use dafs_proto::transport::{ConnectError, PeerFault};

use crate::quote::{harmless, quoted};
use crate::remote::ends_session;

/// Exit status when something failed.
pub(crate) const FAILED: u8 = 1;
/// Exit status when the command line is wrong.
pub(crate) const USAGE: u8 = 2;
/// Exit status after Ctrl-C, as shells have it.
pub(crate) const INTERRUPTED: u8 = 130;

/// Something was reported that the rest of the command went on after.
static HAS_FAILED: AtomicBool = AtomicBool::new(false);

pub(crate) type Result<T> = std::result::Result<T, Failure>;

/// Why a command, or a part of it, could not be done.
#[derive(Clone, Debug)]
pub(crate) enum Failure {
    /// In words, for standard error.
    Text(String),
    /// So is this: the server cannot be reached, or not any more, and nothing else need be asked of it.
    Unreached(String),
    /// The command line asks for what cannot be.
    Usage(String),
    /// Nobody reads standard output any more: no error, and nothing to say.
    OutputClosed,
    /// The user pressed Ctrl-C.
    Interrupted,
}

impl Failure {
    pub(crate) fn text(text: impl Into<String>) -> Self {
        Self::Text(text.into())
    }

    pub(crate) fn usage(text: impl Into<String>) -> Self {
        Self::Usage(text.into())
    }

    /// `cannot <action> '<subject>': <why>; <what to do>`, of something on a server.
    pub(crate) fn remote(action: &str, subject: &[u8], error: &Error) -> Self {
        let text = format!("cannot {action} {}: {}", quoted(subject), explain(error));
        let is_unreached = ends_session(error) || matches!(error, Error::Connect(_) | Error::Resolve(_));
        if is_unreached { Self::Unreached(text) } else { Self::Text(text) }
    }

    /// As [`Failure::remote`], for a URL.
    pub(crate) fn at(action: &str, url: &Url, error: &Error) -> Self {
        use std::os::unix::ffi::OsStrExt;
        Self::remote(action, url.to_os_string().as_bytes(), error)
    }

    pub(crate) fn output(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::OutputClosed,
            _ => Self::Text(format!("cannot write to standard output: {}", system_message(&error))),
        }
    }

    /// Says it, and returns the exit status.
    pub(crate) fn exit(self) -> ExitCode {
        ExitCode::from(self.status())
    }

    /// As [`Failure::exit`], as a number.
    pub(crate) fn status(self) -> u8 {
        match self {
            // What failed before counts, whoever reads the rest.
            Self::OutputClosed if HAS_FAILED.load(Ordering::Relaxed) => FAILED,
            Self::OutputClosed => 0,
            Self::Interrupted => INTERRUPTED,
            Self::Text(text) | Self::Unreached(text) => {
                say(&text);
                FAILED
            }
            Self::Usage(text) => {
                say(&text);
                USAGE
            }
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) | Self::Unreached(text) | Self::Usage(text) => f.write_str(text),
            Self::OutputClosed => f.write_str("standard output is closed"),
            Self::Interrupted => f.write_str("interrupted"),
        }
    }
}

/// Says something on standard error.
pub(crate) fn say(text: &str) {
    line(&format!("dafs: {text}"));
}

/// As [`say`], without the program's name.
pub(crate) fn line(text: &str) {
    use std::io::Write;
    // Where it cannot be said there is nobody to be told so: the exit status remains. What a server says is no command to a terminal, nor a
    // line of its own.
    let _ = writeln!(io::stderr(), "{}", harmless(text, false));
}

/// Failures that do not end a command: each is said at once, and counted.
#[derive(Debug, Default)]
pub(crate) struct Failures {
    count: AtomicU64,
    bar: Mutex<Option<indicatif::ProgressBar>>,
}

impl Failures {
    /// From now on lines are printed above this bar.
    pub(crate) fn print_above(&self, bar: indicatif::ProgressBar) {
        *lock(&self.bar) = Some(bar);
    }

    pub(crate) fn report(&self, failure: &Failure) {
        if matches!(failure, Failure::Interrupted | Failure::OutputClosed) {
            return;
        }
        self.count.fetch_add(1, Ordering::Relaxed);
        HAS_FAILED.store(true, Ordering::Relaxed);
        self.say(&failure.to_string());
    }

    /// Says something that is no failure.
    pub(crate) fn say(&self, text: &str) {
        let bar = lock(&self.bar);
        match &*bar {
            Some(bar) => bar.suspend(|| say(text)),
            None => say(text),
        }
    }

    /// Something was not done, as a failure that was said already tells.
    pub(crate) fn count_untold(&self) {
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Goes on after a failure of one of several things; ends the command when there is nobody to write to.
    pub(crate) fn keep_going(&self, result: Result<()>) -> Result<()> {
        match result {
            Err(failure @ (Failure::OutputClosed | Failure::Interrupted | Failure::Usage(_))) => Err(failure),
            Err(failure) => {
                self.report(&failure);
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    pub(crate) fn exit(&self) -> ExitCode {
        match self.count() {
            0 => ExitCode::SUCCESS,
            _ => ExitCode::from(FAILED),
        }
    }
}

/// Why, and what to do.
pub(crate) fn explain(error: &Error) -> String {
    let why = match error {
        Error::InDoubt { .. } => "the server forgot the session, and may have done it".to_owned(),
        Error::Stale { cause, .. } => format!("the server forgot the session, and {cause}"),
        // Who was to be connected to, the failure says already.
        Error::Connect(connect) => match &**connect {
            ConnectError::System { source, .. } => system_message(source),
            ConnectError::Peer { address, fault: PeerFault::Malformed { what, .. } }
                if what.starts_with("no dafs peer") =>
            {
                format!("what answers at {address} does not speak dafs")
            }
            connect => connect.to_string(),
        },
        error => error.cause(),
    };
    match advice(error) {
        Some(advice) => format!("{why}; {advice}"),
        None => why,
    }
}

fn advice(error: &Error) -> Option<&'static str> {
    Some(match error {
        Error::Connect(connect) => match &**connect {
            ConnectError::System { source, .. } => match source.kind() {
                io::ErrorKind::ConnectionRefused => "check that dafs-server is running and listens there",
                // Where the provider says more than the system, it says what to do.
                io::ErrorKind::NotFound if source.raw_os_error().is_some() => {
                    "check that dafs-server is running, and that this is its socket"
                }
                io::ErrorKind::PermissionDenied => "ask who runs the server for access to its socket",
                _ => return None,
            },
            ConnectError::Timeout { .. } => "check the address, and firewalls on the way",
            ConnectError::Peer { .. } => "check that it is a dafs server",
            ConnectError::WrongAddress { .. } => return None,
        },
        Error::Handshake(HandshakeError::Refused(status)) => match *status {
            Status::AUTH_FAILED => "give a key of this server with --key-file",
            Status::AUTH_REQUIRED => "give a key with --key-file",
            Status::SERVER_FULL => "try again later, or raise --sessions-max of the server",
            Status::VERSION => "use a dafs of the server's version",
            _ => return None,
        },
        Error::Status { status, .. } => match *status {
            Status::NO_EXPORT => "`dafs exports` lists those that you may mount",
            Status::ACCESS | Status::PERMISSION => {
                "`dafs info` shows who you are to the server; map=, squash= and no_root_squash of the export say which user you act as"
            }
            Status::CROSS_DEVICE => "a symbolic link that leaves the export is not followed",
            Status::NO_SPACE => "`dafs df` shows what is left",
            Status::TOO_MANY_OPEN => "copy fewer files at once with --jobs 1, or raise the server's limit",
            _ => return None,
        },
        Error::InDoubt { .. } | Error::Stale { .. } => "run the command again",
        _ => return None,
    })
}

/// A system error without Rust's "(os error 2)".
pub(crate) fn system_message(error: &io::Error) -> String {
    let text = error.to_string();
    let number = text.find(" (os error").and_then(|at| Some(at..at + text[at..].find(')')? + 1));
    let mut text = text;
    if let Some(number) = number {
        text.replace_range(number, "");
    }
    if let Some(first) = text.get(..1).map(str::to_lowercase)
        && text.get(1..2).is_some_and(|second| second.chars().all(char::is_lowercase))
    {
        text.replace_range(..1, &first);
    }
    text
}
