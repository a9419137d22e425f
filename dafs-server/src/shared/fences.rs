//! The fence list of each export. Lists outlive the server if it has a store.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use dafs_proto::transport::PeerIdentity;
use dafs_proto::wire::{FenceList, FenceMode, PAYLOAD_SIZE_MIN, Status, encode_message_pack};

use super::store::{Change, Store, Tell};
use crate::access::AddressRange;

/// Entries of one export's list at most.
pub(crate) const FENCES_MAX: usize = 1024;
/// The longest list, bytes: each client can send it, with the sum of the one before, and receive it.
const FENCE_SIZE_MAX: usize = 8000;
const _: () = assert!(FENCE_SIZE_MAX + 128 <= PAYLOAD_SIZE_MIN);

/// Bytes of a key's name at most.
const KEY_NAME_MAX: usize = 256;

/// Of whom it is asked whether he is fenced off.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Subject<'a> {
    pub(crate) client_id: &'a [u8; 16],
    pub(crate) key_name: Option<&'a str>,
    /// Where it came from last; `None` for this host.
    pub(crate) address: Option<SocketAddr>,
}

/// The fences of all exports.
pub(crate) struct Fences {
    by_export: Vec<Fence>,
    names: Vec<String>,
    store: Option<Arc<Store>>,
}

#[derive(Default)]
struct Fence {
    /// Nearly always nobody is: then no lock is taken.
    is_up: AtomicBool,
    list: RwLock<Checked>,
}

/// A list, with what its addresses mean.
#[derive(Clone, Debug, Default)]
pub(crate) struct Checked {
    list: FenceList,
    ranges: Vec<AddressRange>,
}

impl Checked {
    /// Checks what a client, or the store, says.
    ///
    /// # Errors
    /// [`Status::TOO_LARGE`] for more than [`FENCES_MAX`] entries, or more bytes than each client can receive; [`Status::INVALID`] for an
    /// address or a name that cannot be one.
    pub(crate) fn new(list: FenceList) -> Result<Self, Status> {
        if list.len() > FENCES_MAX || encode_message_pack(&list).len() > FENCE_SIZE_MAX {
            return Err(Status::TOO_LARGE);
        }
        let is_name =
            |key: &String| !key.is_empty() && key.len() <= KEY_NAME_MAX && !key.contains(char::is_control);
        if !list.keys.iter().all(is_name) {
            return Err(Status::INVALID);
        }
        let ranges = list.addresses.iter().map(|range| range.parse::<AddressRange>());
        let ranges = ranges.collect::<Result<_, _>>().map_err(|_| Status::INVALID)?;
        Ok(Self { list, ranges })
    }

    fn names(&self, subject: &Subject<'_>) -> bool {
        let peer = PeerIdentity { address: subject.address, credentials: None };
        self.list.clients.contains(subject.client_id)
            || subject.key_name.is_some_and(|name| self.list.keys.iter().any(|key| key == name))
            || self.ranges.iter().any(|range| range.contains(&peer))
    }

    /// It fences this client off.
    pub(super) fn holds_off(&self, subject: &Subject<'_>) -> bool {
        match self.list.mode {
            FenceMode::Deny => self.names(subject),
            FenceMode::Allow => !self.names(subject),
        }
    }

    fn is_up(&self) -> bool {
        self.list.mode == FenceMode::Allow || !self.list.is_empty()
    }
}

impl Fences {
    /// Of exports of these names; nobody is fenced off, and nothing is kept.
    pub(super) fn new(names: Vec<String>) -> Self {
        let by_export = std::iter::repeat_with(Fence::default).take(names.len()).collect();
        Self { by_export, names, store: None }
    }

    /// Takes up what a store has kept, and keeps lists there from now on.
    ///
    /// # Errors
    /// The export whose list cannot be one.
    pub(super) fn keep_in(
        &mut self,
        store: Arc<Store>,
        kept: &BTreeMap<String, FenceList>,
    ) -> Result<(), String> {
        for (name, fence) in self.names.iter().zip(&self.by_export) {
            if let Some(list) = kept.get(name) {
                let checked = Checked::new(list.clone()).map_err(|_| name.clone())?;
                fence.set(checked, None).map_err(|_| name.clone())?;
            }
        }
        self.store = Some(store);
        Ok(())
    }

    /// The client is fenced off the export.
    #[inline]
    pub(crate) fn holds_off(&self, export: usize, subject: &Subject<'_>) -> bool {
        let fence = &self.by_export[export];
        fence.is_up.load(Ordering::Acquire) && fence.list().holds_off(subject)
    }

    /// All but those who are named are fenced off the export: who may write the list may look at it, or nobody could.
    pub(crate) fn names_the_allowed(&self, export: usize) -> bool {
        let fence = &self.by_export[export];
        fence.is_up.load(Ordering::Acquire) && fence.list().list.mode == FenceMode::Allow
    }

    /// The list of an export.
    pub(crate) fn of(&self, export: usize) -> FenceList {
        self.by_export[export].list().list.clone()
    }

    /// Replaces an export's list, at once. [`Fences::keep`] makes it outlive the server.
    ///
    /// # Errors
    /// [`Status::NOT_SAME`] where the list is not the one with the sum `before`.
    pub(crate) fn set(&self, export: usize, list: Checked, before: Option<[u8; 32]>) -> Result<(), Status> {
        self.by_export[export].set(list, before)
    }

    /// Lists outlive the server.
    pub(crate) fn are_kept(&self) -> bool {
        self.store.is_some()
    }

    /// Has an export's list written, as it is now. It holds whether that can be or not, and is then written later.
    pub(crate) fn keep(&self, export: usize, tell: Tell) {
        if let Some(store) = &self.store {
            // Nobody replaces it meanwhile: what is written last is what was set last.
            let checked = self.by_export[export].list();
            store.note(Change::Fence(self.names[export].clone(), checked.list.clone()), Some(tell));
        }
    }
}

impl Fence {
    fn set(&self, list: Checked, before: Option<[u8; 32]>) -> Result<(), Status> {
        let mut current = self.list.write().unwrap_or_else(PoisonError::into_inner);
        if before.is_some_and(|before| before != current.list.sum()) {
            return Err(Status::NOT_SAME);
        }
        self.is_up.store(list.is_up(), Ordering::Release);
        *current = list;
        Ok(())
    }

    fn list(&self) -> RwLockReadGuard<'_, Checked> {
        self.list.read().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subject<'a>(id: &'a [u8; 16], key_name: Option<&'a str>, address: Option<&str>) -> Subject<'a> {
        let address = address.map(|address| SocketAddr::new(address.parse().unwrap(), 7));
        Subject { client_id: id, key_name, address }
    }

    fn list() -> FenceList {
        FenceList {
            mode: FenceMode::Deny,
            clients: vec![[1; 16]],
            keys: vec!["alpha".into()],
            addresses: vec!["10.0.0.0/8".into(), "local".into()],
        }
    }

    // [ACC-130] [ACC-131] [ACC-132] [ACC-133]
    #[test]
    fn client_is_named_by_its_id_its_key_or_its_address() {
        let fences = Fences::new(vec!["data".into(), "other".into()]);
        let cases = [
            (subject(&[1; 16], None, Some("192.0.2.1")), true),
            (subject(&[2; 16], Some("alpha"), Some("192.0.2.1")), true),
            (subject(&[2; 16], Some("beta"), Some("10.1.2.3")), true),
            (subject(&[2; 16], None, Some("::ffff:10.1.2.3")), true),
            (subject(&[2; 16], None, None), true),
            (subject(&[2; 16], None, Some("127.0.0.1")), true),
            (subject(&[2; 16], Some("alphabet"), Some("192.0.2.1")), false),
            (subject(&[2; 16], None, Some("11.0.0.1")), false),
        ];
        for mode in [FenceMode::Deny, FenceMode::Allow] {
            fences.set(0, Checked::new(FenceList { mode, ..list() }).unwrap(), None).unwrap();
            for (subject, is_named) in &cases {
                assert_eq!(
                    fences.holds_off(0, subject),
                    *is_named == (mode == FenceMode::Deny),
                    "{subject:?}"
                );
                assert!(!fences.holds_off(1, subject), "another export");
            }
        }
        let nobody = FenceList { mode: FenceMode::Allow, ..FenceList::default() };
        fences.set(0, Checked::new(nobody).unwrap(), None).unwrap();
        assert!(fences.holds_off(0, &cases[0].0), "an empty list of those allowed lets nobody in");
        fences.set(0, Checked::default(), None).unwrap();
        assert!(!fences.holds_off(0, &cases[0].0));
    }

    // [ACC-153]
    #[test]
    fn fence_list_changed_meanwhile_is_not_replaced() {
        let fences = Fences::new(vec!["data".into()]);
        let of = |id: u8| FenceList::of_clients(&[[id; 16]]);
        let set = |list, before: &FenceList| fences.set(0, Checked::new(list).unwrap(), Some(before.sum()));
        assert_eq!(set(of(1), &FenceList::default()), Ok(()));
        assert_eq!(set(of(2), &FenceList::default()), Err(Status::NOT_SAME));
        assert_eq!(fences.of(0), of(1));
        assert_eq!(set(of(2), &of(1)), Ok(()));
        assert_eq!(fences.of(0), of(2));
    }

    // [ACC-134]
    #[test]
    fn list_with_an_entry_that_cannot_be_one_is_refused() {
        let of = |keys: Vec<String>, addresses: Vec<String>| {
            Checked::new(FenceList { keys, addresses, ..FenceList::default() }).map(drop)
        };
        assert_eq!(of(vec!["k".repeat(256)], vec![]), Ok(()));
        for keys in [vec![String::new()], vec!["k".repeat(257)], vec!["a\nb".into()]] {
            assert_eq!(of(keys, vec![]), Err(Status::INVALID));
        }
        for address in ["", "host", "10.0.0.1/8", "10.0.0.0/33", "10.0.0.0/"] {
            assert_eq!(of(vec![], vec![address.into()]), Err(Status::INVALID), "{address}");
        }
        let many = |count| of(vec!["k".into(); count], vec![]);
        assert_eq!((many(FENCES_MAX), many(FENCES_MAX + 1)), (Ok(()), Err(Status::TOO_LARGE)));
        // The longest that every client can read in one message.
        let clients = |count| FenceList::of_clients(&vec![[7; 16]; count]);
        let size = |count| encode_message_pack(&clients(count)).len();
        let first = (1..FENCES_MAX).find(|count| size(*count) > FENCE_SIZE_MAX).unwrap();
        let check = |count| Checked::new(clients(count)).map(drop);
        assert_eq!((check(first - 1), check(first)), (Ok(()), Err(Status::TOO_LARGE)));
    }
}
