//! Connecting again where a busy listener gave the handshake up.

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
