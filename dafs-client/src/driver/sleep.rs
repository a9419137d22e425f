use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

use dafs_proto::transport::Interrupt;
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};

const CONNECTION: Token = Token(0);
const INTERRUPT: Token = Token(1);

/// Watches the descriptors of one connection, and whether another thread wants the one that sleeps.
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
        interrupt: &Interrupt,
    ) -> io::Result<&'a mut Self> {
        if sleeper.as_ref().is_none_or(|sleeper| sleeper.connection != connection) {
            let poll = Poll::new()?;
            for fd in fds {
                poll.registry().register(
                    &mut SourceFd(fd),
                    CONNECTION,
                    Interest::READABLE | Interest::WRITABLE,
                )?;
            }
            let interrupt = interrupt.fd().as_raw_fd();
            poll.registry().register(&mut SourceFd(&interrupt), INTERRUPT, Interest::READABLE)?;
            *sleeper = Some(Self { poll, events: Events::with_capacity(4), connection });
        }
        sleeper.as_mut().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Sleeps until something happened since the last sleep, or the timeout has passed. Whether it was interrupted.
    pub(crate) fn sleep(&mut self, timeout: Duration) -> bool {
        if let Err(error) = self.poll.poll(&mut self.events, Some(timeout))
            && error.kind() != io::ErrorKind::Interrupted
        {
            tracing::warn!("cannot wait for the connection: {error}");
        }
        self.events.iter().any(|event| event.token() == INTERRUPT)
    }
}
