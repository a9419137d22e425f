use std::io;
use std::os::fd::RawFd;
use std::time::Duration;

use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};

/// Watches the descriptors of one connection.
pub(crate) struct Sleeper {
    poll: Poll,
    events: Events,
    // Which connection they are of.
    connection: u64,
}

impl Sleeper {
    /// The sleeper that watches this connection; made anew when it watches another.
    pub(crate) fn prepared<'a>(
        sleeper: &'a mut Option<Self>,
        connection: u64,
        fds: &[RawFd],
    ) -> io::Result<&'a mut Self> {
        if sleeper.as_ref().is_none_or(|sleeper| sleeper.connection != connection) {
            let poll = Poll::new()?;
            for fd in fds {
                poll.registry().register(
                    &mut SourceFd(fd),
                    Token(0),
                    Interest::READABLE | Interest::WRITABLE,
                )?;
            }
            *sleeper = Some(Self { poll, events: Events::with_capacity(4), connection });
        }
        sleeper.as_mut().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Sleeps until something happened since the last sleep, or the timeout has passed.
    pub(crate) fn sleep(&mut self, timeout: Duration) {
        if let Err(error) = self.poll.poll(&mut self.events, Some(timeout))
            && error.kind() != io::ErrorKind::Interrupted
        {
            tracing::warn!("cannot wait for the connection: {error}");
        }
    }
}
