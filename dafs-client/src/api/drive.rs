//! A task that moves a session along, on tokio.
#![allow(unsafe_code, reason = "tokio has to be told that the descriptor stays open")]

use std::io;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::api::completions::{Completions, failed};
use crate::api::session::Session;
use crate::error::Result;

/// Turns in a row before other tasks have theirs.
const TURNS_MAX: u32 = 32;

impl Session {
    /// A task that moves the session along and wakes those that wait for a [`Pending`](crate::Pending). It ends with the session, and does
    /// not keep it from ending. One is enough: `tokio::spawn(session.drive()?)`. It is to run on a runtime with I/O enabled.
    pub fn drive(&self) -> Result<impl Future<Output = Result<()>> + Send + use<>> {
        let completions = Completions::of(&self.owner.shared, false)?;
        Ok(drive(completions))
    }
}

async fn drive(completions: Completions) -> Result<()> {
    let shared = std::sync::Arc::clone(&completions.shared);
    let refused = |error: io::Error| failed(&shared, "wait for", &error);
    // SAFETY: the descriptor is that of an epoll which `completions` owns and never exchanges; it is closed when that is dropped.
    let watched = unsafe { AsyncFd::register_with_interest(completions, Interest::READABLE) };
    let completions = watched.map_err(|error| refused(error.into()))?;
    loop {
        let is_over = completions.get_ref().is_over();
        let is_idle = (0..TURNS_MAX).any(|_| !completions.get_ref().turn());
        if is_over {
            return Ok(());
        }
        if is_idle && completions.get_ref().arm()? {
            completions.readable().await.map_err(refused)?.clear_ready();
        } else {
            tokio::task::yield_now().await;
        }
    }
}
