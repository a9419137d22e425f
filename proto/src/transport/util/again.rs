//! Retries of a connection whose handshake a busy listener dropped.

use std::io::ErrorKind;
use std::time::{Duration, Instant};

use super::super::ConnectError;

/// Attempts after the first.
const AGAIN_MAX: u32 = 7;
/// Before the second attempt; twice as long before each further one.
const PAUSE: Duration = Duration::from_millis(5);

/// Attempts a handshake until it is through, but for one that the listener cut off: it may have had no room, and has some soon. A few
/// times, within `timeout`, which each attempt is told the rest of. Blocking.
pub fn connect_again<T>(
    timeout: Duration,
    mut attempt: impl FnMut(Duration) -> Result<T, ConnectError>,
) -> Result<T, ConnectError> {
    let began = Instant::now();
    let mut pause = PAUSE;
    let first = match attempt(timeout) {
        Err(error) if was_cut_off(&error) => error,
        outcome => return outcome,
    };
    for _ in 0..AGAIN_MAX {
        if began.elapsed() + pause >= timeout {
            break;
        }
        std::thread::sleep(pause);
        pause *= 2;
        match attempt(timeout.saturating_sub(began.elapsed())) {
            Ok(done) => return Ok(done),
            Err(error) if was_cut_off(&error) => {}
            // It is gone meanwhile: how it went the first time tells more.
            Err(_) => break,
        }
    }
    Err(first)
}

fn was_cut_off(error: &ConnectError) -> bool {
    matches!(error, ConnectError::System { source, .. }
        if matches!(source.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset | ErrorKind::UnexpectedEof))
}

#[cfg(test)]
mod tests {
    use super::super::super::PeerFault;
    use super::*;

    const LONG: Duration = Duration::from_secs(3600);

    fn failed(kind: ErrorKind) -> ConnectError {
        ConnectError::System { what: "handshake with", address: String::new(), source: kind.into() }
    }

    /// The outcome of these attempts, after which each is through, and how many there were.
    fn outcome(timeout: Duration, attempts: Vec<ConnectError>) -> (Result<(), ConnectError>, usize) {
        let (mut attempts, mut count) = (attempts.into_iter(), 0);
        let result = connect_again(timeout, |left| {
            assert!(left <= timeout);
            count += 1;
            attempts.next().map_or(Ok(()), Err)
        });
        (result, count)
    }

    #[test]
    fn handshake_that_is_cut_off_is_begun_again() {
        for kind in [ErrorKind::BrokenPipe, ErrorKind::ConnectionReset, ErrorKind::UnexpectedEof] {
            let (result, count) = outcome(LONG, vec![failed(kind), failed(kind)]);
            assert!(result.is_ok() && count == 3, "{kind:?}: {result:?}, {count}");
        }
    }

    #[test]
    fn handshake_that_is_refused_is_not_begun_again() {
        let refused = || failed(ErrorKind::ConnectionRefused);
        let (result, count) = outcome(LONG, vec![refused()]);
        assert!(result.is_err() && count == 1, "{result:?}, {count}");
        let malformed =
            ConnectError::Peer { address: String::new(), fault: PeerFault::malformed("magic", 1_u64, 2_u64) };
        let (result, count) = outcome(LONG, vec![malformed]);
        assert!(result.is_err() && count == 1, "{result:?}, {count}");
        // What came first tells more.
        let (result, count) = outcome(LONG, vec![failed(ErrorKind::BrokenPipe), refused()]);
        assert!(result.is_err_and(|error| was_cut_off(&error)) && count == 2, "{count}");
    }

    #[test]
    fn attempts_are_bounded_in_number_and_time() {
        let always = || (0..100).map(|_| failed(ErrorKind::BrokenPipe)).collect();
        let (result, count) = outcome(LONG, always());
        assert!(result.is_err() && count == 1 + AGAIN_MAX as usize, "{count}");
        let (result, count) = outcome(PAUSE, always());
        assert!(result.is_err() && count == 1, "{count}");
    }
}
