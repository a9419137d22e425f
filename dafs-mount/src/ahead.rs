//! Attributes of directories, asked for before the kernel asks.
//!
//! When a name in a directory was made, taken away or changed, the kernel looks at the directory's attributes before its next call there:
//! they have the permissions. They are asked for as soon as the change is done, so that they are here by then. Whether the kernel will ask
//! is learned for each directory: it is where it has asked after the last change.

use std::cell::RefCell;
use std::collections::HashMap;
use std::time::{Duration, Instant};

use dafs_client::{Attributes, Dir, Error, Pending};

use crate::kernel::errno::Answer;

/// What is known of a directory since its last change from here.
enum Known {
    /// The kernel has not asked since.
    Changed,
    /// The kernel has asked since.
    Asked,
    /// Asked for at this time, and not yet used.
    Ahead { since: Instant, attributes: Pending<dafs_client::Result<Attributes>> },
}

/// Directories that were changed from here, by their nodes.
#[derive(Default)]
pub(crate) struct Ahead(RefCell<HashMap<u64, Known>>);

impl Ahead {
    /// Names in a directory were changed. `valid`: how long attributes are believed.
    pub(crate) fn changed(&self, node: u64, directory: &Dir, valid: Duration) {
        let mut known = self.0.borrow_mut();
        let asked = matches!(known.get(&node), Some(Known::Asked)) && !valid.is_zero();
        let now = match asked {
            true => Known::Ahead { since: Instant::now(), attributes: directory.submit_symlink_metadata("") },
            false => Known::Changed,
        };
        known.insert(node, now);
    }

    /// The kernel asks. What was asked for ahead, and how long it is believed yet; an error where the server is away, and was waited for.
    pub(crate) async fn take(&self, node: u64, valid: Duration) -> Option<Answer<(Attributes, Duration)>> {
        // Most nodes are not there.
        let known = std::mem::replace(self.0.borrow_mut().get_mut(&node)?, Known::Asked);
        let Known::Ahead { since, attributes } = known else { return None };
        let left = || valid.checked_sub(since.elapsed()).filter(|left| !left.is_zero());
        left()?;
        let was_there = attributes.has_ended();
        match attributes.await {
            Ok(attributes) => Some(Ok((attributes, left()?))),
            Err(error @ (Error::Connection { .. } | Error::TimedOut { .. })) if !was_there => {
                Some(Err(error.into()))
            }
            Err(_) => None,
        }
    }

    /// Its attributes are changed, or it is forgotten: what was asked for is of no use.
    pub(crate) fn forget(&self, node: u64) {
        self.0.borrow_mut().remove(&node);
    }
}
