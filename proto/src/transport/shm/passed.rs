//! Descriptors of files that the peer passes, under keys that this side has asked for.

use std::os::fd::OwnedFd;

use super::super::PeerFault;
use super::handshake::malformed;
use super::sock::Files;

/// What was asked for and what has come. Bounded by what this side asks for at once.
#[derive(Debug, Default)]
pub(super) struct Passed(Vec<(u64, Option<OwnedFd>)>);

impl Passed {
    /// One is asked for, once more where it was before.
    pub(super) fn expect(&mut self, key: u64) {
        if !self.has_key(key) {
            self.0.push((key, None));
        }
    }

    /// One has come; what is left in `files` is of no use. Where this process had no descriptor left for it, it counts as not passed.
    pub(super) fn arrive(&mut self, key: u64, files: &mut Files, cut: bool) -> Result<(), PeerFault> {
        let count = files.len();
        if count != 1 && !(cut && count == 0) {
            return Err(malformed("descriptors of a socket message", count as u64, 1));
        }
        let Some((_, place)) =
            self.0.iter_mut().find(|(expected, place)| *expected == key && place.is_none())
        else {
            return Err(malformed("key of a descriptor that nobody has asked for", key, 0));
        };
        *place = files.pop();
        Ok(())
    }

    /// It has come.
    pub(super) fn has(&self, key: u64) -> bool {
        self.0.iter().any(|(expected, file)| *expected == key && file.is_some())
    }

    pub(super) fn take(&mut self, key: u64) -> Option<OwnedFd> {
        let place = self.0.iter().position(|(expected, _)| *expected == key)?;
        self.0.swap_remove(place).1
    }

    fn has_key(&self, key: u64) -> bool {
        self.0.iter().any(|(expected, _)| *expected == key)
    }
}

#[cfg(test)]
mod tests {
    use smallvec::smallvec;

    use super::*;

    fn file() -> OwnedFd {
        super::super::sock::eventfd().unwrap()
    }

    // [LOCAL-11]
    #[test]
    fn descriptor_that_nobody_has_asked_for_is_the_peer_s_fault() {
        let mut passed = Passed::default();
        assert!(passed.arrive(7, &mut smallvec![file()], false).is_err());
        passed.expect(7);
        passed.expect(7);
        assert!(passed.arrive(8, &mut smallvec![file()], false).is_err());
        assert!(passed.arrive(7, &mut smallvec![file(), file()], false).is_err());
        assert!(passed.arrive(7, &mut Files::new(), false).is_err());
        passed.arrive(7, &mut smallvec![file()], false).unwrap();
        assert!(passed.arrive(7, &mut smallvec![file()], false).is_err(), "one is enough");
        assert!(passed.has(7) && passed.take(7).is_some());
        assert!(passed.take(7).is_none());
        assert!(passed.arrive(7, &mut smallvec![file()], false).is_err());
    }

    #[test]
    fn descriptor_that_this_process_had_no_room_for_counts_as_not_passed() {
        let mut passed = Passed::default();
        passed.expect(7);
        passed.arrive(7, &mut Files::new(), true).unwrap();
        assert!(!passed.has(7) && passed.take(7).is_none());
    }
}
