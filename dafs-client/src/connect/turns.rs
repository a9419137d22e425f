//! Several servers of which each has the same files: one after the other is tried. Imports nothing that connects.

use std::time::Duration;

use dafs_proto::session::HandshakeError;
use dafs_proto::transport::ConnectError;
use dafs_proto::wire::Status;

use crate::clock::Clock;
use crate::error::{Error, Result};

/// Where there are several servers, one that does not answer is waited for this long.
pub(crate) const ATTEMPT_TIME_MAX: Duration = Duration::from_secs(1);
/// Longest pause after all of several servers were tried.
pub(crate) const PAUSE_MAX: Duration = Duration::from_millis(200);
const PAUSE_MIN: Duration = Duration::from_millis(10);

/// Trying again cannot help.
pub(crate) fn is_final(error: &Error) -> bool {
    match error {
        Error::Handshake(HandshakeError::Refused(status)) => {
            !matches!(*status, Status::DRAINING | Status::SERVER_FULL | Status::NO_SESSION | Status::AGAIN)
        }
        Error::Handshake(_) | Error::Peer(_) => true,
        Error::Connect(error) => matches!(**error, ConnectError::WrongAddress { .. }),
        _ => false,
    }
}

/// Tries servers in their order, until one takes a session or says what no other could help; all of them again, while one asks for that.
/// `attempt` is given an index and the time that it may take. Blocks for `time_max`, and one round of attempts more.
pub(crate) fn in_turn<T>(
    names: &[String],
    time_max: Duration,
    clock: &dyn Clock,
    mut attempt: impl FnMut(usize, Duration) -> Result<T>,
) -> Result<T> {
    let is_one = names.len() == 1;
    let attempt_max = if is_one { time_max } else { time_max.min(ATTEMPT_TIME_MAX) };
    let end = clock.now().after(time_max);
    let mut pause = PAUSE_MIN;
    loop {
        let mut tried = Vec::new();
        for (index, name) in names.iter().enumerate() {
            match attempt(index, attempt_max) {
                Ok(done) => return Ok(done),
                Err(error) if is_one || is_final(&error) => return Err(error),
                Err(error) => {
                    tracing::debug!("{name}: {error}");
                    tried.push((name, error));
                }
            }
        }
        let is_asked_again = tried.iter().any(|(_, error)| error.status() == Some(Status::AGAIN));
        if !is_asked_again || clock.now().after(pause) >= end {
            return Err(all_failed(&tried));
        }
        clock.sleep(pause);
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// What came of each.
fn all_failed(tried: &[(&String, Error)]) -> Error {
    let each: Vec<String> = tried.iter().map(|(name, error)| format!("{name}: {error}")).collect();
    let (what, address) = ("open a session with any of", format!("{} servers", tried.len()));
    ConnectError::System { what, address, source: std::io::Error::other(each.join("; ")) }.into()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::cell::RefCell;
    use std::sync::Mutex;

    use dafs_proto::session::Moment;

    use super::*;

    /// Time passes where somebody sleeps.
    #[derive(Default)]
    struct Sleeps(Mutex<Vec<Duration>>);

    impl Clock for Sleeps {
        fn now(&self) -> Moment {
            Moment::default().after(self.0.lock().unwrap().iter().sum())
        }

        fn sleep(&self, duration: Duration) {
            self.0.lock().unwrap().push(duration);
        }
    }

    fn refused(status: Status) -> Error {
        HandshakeError::Refused(status).into()
    }

    fn unreached() -> Error {
        ConnectError::Timeout { address: "it".into(), timeout_ms: 1 }.into()
    }

    /// What comes of it where servers answer like this, one after the other and round again; how many were asked, and the pauses.
    fn outcome(servers: usize, answers: &[fn() -> Result<()>]) -> (Result<()>, usize, Vec<Duration>) {
        let (clock, asked) = (Sleeps::default(), RefCell::new(0));
        let names: Vec<String> = (0..servers).map(|index| format!("s{index}")).collect();
        let done = in_turn(&names, Duration::from_secs(2), &clock, |index, time| {
            let number = asked.replace_with(|asked| *asked + 1);
            assert_eq!(index, number % servers);
            assert_eq!(time, Duration::from_secs(if servers == 1 { 2 } else { 1 }));
            answers[number.min(answers.len() - 1)]()
        });
        (done, asked.into_inner(), clock.0.into_inner().unwrap())
    }

    // [CLI-205]
    #[test]
    fn server_that_takes_no_session_makes_the_next_be_tried() {
        for status in [Status::AGAIN, Status::DRAINING, Status::SERVER_FULL] {
            let answers: [fn() -> Result<()>; 3] = match status {
                Status::AGAIN => [|| Err(refused(Status::AGAIN)), || Err(unreached()), || Ok(())],
                Status::DRAINING => [|| Err(refused(Status::DRAINING)), || Err(unreached()), || Ok(())],
                _ => [|| Err(refused(Status::SERVER_FULL)), || Err(unreached()), || Ok(())],
            };
            let (done, asked, pauses) = outcome(3, &answers);
            assert!(done.is_ok() && asked == 3 && pauses.is_empty(), "{status}: {done:?}, {asked}");
        }
        let (done, asked, _) = outcome(3, &[|| Err(unreached()), || Err(refused(Status::AUTH_FAILED))]);
        assert_eq!((done.unwrap_err().status(), asked), (Some(Status::AUTH_FAILED), 2));
    }

    // [CLI-205]
    #[test]
    fn error_tells_of_all_servers_that_were_tried() {
        let (done, asked, pauses) = outcome(2, &[|| Err(unreached()), || Err(refused(Status::DRAINING))]);
        let error = done.unwrap_err();
        assert!(asked == 2 && pauses.is_empty() && matches!(error, Error::Connect(_)), "{error:?}");
        let text = error.to_string();
        assert!(text.contains("any of 2 servers: s0: ") && text.contains("; s1: "), "{text}");
        let (done, asked, _) = outcome(1, &[|| Err(refused(Status::DRAINING))]);
        assert_eq!((done.unwrap_err().status(), asked), (Some(Status::DRAINING), 1));
    }

    // [CLI-206]
    #[test]
    fn servers_that_say_again_are_tried_until_time_is_over() {
        let (done, asked, pauses) = outcome(2, &[|| Err(refused(Status::AGAIN))]);
        assert!(done.is_err() && asked == 2 * (pauses.len() + 1));
        let millis: Vec<u128> = pauses.iter().map(Duration::as_millis).collect();
        assert_eq!(millis[..6], [10, 20, 40, 80, 160, 200]);
        assert!(millis[6..].iter().all(|pause| *pause == 200) && millis.iter().sum::<u128>() < 2000);
        // A server that cannot be reached may be the one that is taken over.
        let (done, asked, _) = outcome(
            2,
            &[|| Err(unreached()), || Err(refused(Status::AGAIN)), || Err(unreached()), || Ok(())],
        );
        assert!(done.is_ok() && asked == 4);
        let (done, asked, _) = outcome(1, &[|| Err(refused(Status::AGAIN))]);
        assert!(done.is_err() && asked == 1);
    }

    // [CLI-102]
    #[test]
    fn refusal_that_trying_again_cannot_help_is_final_and_no_other() {
        let refused = |status| is_final(&refused(status));
        for status in [Status::DRAINING, Status::SERVER_FULL, Status::NO_SESSION, Status::AGAIN] {
            assert!(!refused(status), "{status}");
        }
        for status in [Status::AUTH_FAILED, Status::AUTH_REQUIRED, Status::FENCED, Status::from_value(0x7777)]
        {
            assert!(refused(status), "{status}");
        }
        assert!(is_final(&Error::Handshake(HandshakeError::KeyRequired)));
        let lost = Error::Connection { server: String::new(), cause: String::new() };
        assert!(!is_final(&lost), "it was lost in the handshake");
    }
}
