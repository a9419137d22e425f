//! Looks on while a copy runs, and says when it waits for a server.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use dafs_client::Session;

use super::account::Account;
use crate::report::lock;
use crate::signals::progress;

/// Without any progress for so long a copy waits.
const QUIET_MIN: Duration = Duration::from_secs(2);

/// Without a line on a terminal, a lost connection is told after this time.
const TOLD_AFTER: Duration = Duration::from_secs(10);

/// How often it is looked.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);

/// Runs `copy`, and looks on meanwhile.
pub(super) fn beside(account: &Account, sessions: Vec<&Session>, copy: impl FnOnce()) {
    let (done, ended) = (Mutex::new(false), Condvar::new());
    std::thread::scope(|scope| {
        scope.spawn(|| look_on(account, &sessions, &done, &ended));
        copy();
        *lock(&done) = true;
        ended.notify_all();
    });
}

fn look_on(account: &Account, sessions: &[&Session], done: &Mutex<bool>, ended: &Condvar) {
    let (mut known, mut since, mut told) = (progress(), Instant::now(), false);
    let mut began = crate::local_time::clock();
    let mut is_done = lock(done);
    while !*is_done {
        is_done = ended.wait_timeout(is_done, LOOK_INTERVAL).unwrap_or_else(PoisonError::into_inner).0;
        let now = progress();
        if now != known {
            (known, since, told) = (now, Instant::now(), false);
            began = crate::local_time::clock();
            account.tally.moves();
            continue;
        }
        let quiet = since.elapsed();
        if quiet < QUIET_MIN {
            continue;
        }
        let is_lost = sessions.iter().any(|session| !session.is_connected());
        let text = waiting(&began, quiet, is_lost);
        if account.tally.waits(&text) || told || !is_lost || quiet < TOLD_AFTER {
            continue;
        }
        told = true;
        account.failures.say(&text);
    }
}

/// What is said of a copy that waits.
fn waiting(began: &str, quiet: Duration, is_lost: bool) -> String {
    let seconds = quiet.as_secs();
    match is_lost {
        true => format!(
            "waiting for the server since {began} ({seconds} s): the connection is lost, connecting again"
        ),
        // It may be the server, or what is copied from.
        false => format!("waiting since {began} ({seconds} s): nothing has moved"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // [CMD-9]
    #[test]
    fn wait_is_told_with_its_beginning_and_whether_the_connection_is_lost() {
        let told = waiting("14:03:22", Duration::from_secs(33), true);
        assert!(
            told.starts_with("waiting for the server since 14:03:22 (33 s)") && told.contains("lost"),
            "{told}"
        );
        let told = waiting("14:03:22", Duration::from_secs(3), false);
        assert!(told.starts_with("waiting since 14:03:22 (3 s)") && !told.contains("lost"), "{told}");
    }
}
