use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{WireError, decode_message_pack, encode_message_pack};

/// What a [`FenceList`] says of those in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum FenceMode {
    /// They are fenced off.
    #[default]
    Deny,
    /// All others are fenced off.
    Allow,
}

/// Payload of the reply to `FenceRead`: who is fenced off an export. A client is in the list by any of the three.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FenceList {
    /// What the list says of them.
    pub mode: FenceMode,
    /// Clients by their ids.
    pub clients: Vec<[u8; 16]>,
    /// Clients by the name of the key that they have proven.
    pub keys: Vec<String>,
    /// Clients by their address: an address, a network such as `10.0.0.0/8`, or `local` for those on the server's host.
    pub addresses: Vec<String>,
}

impl FenceList {
    /// Fences these clients off.
    pub fn of_clients(clients: &[[u8; 16]]) -> Self {
        Self { clients: clients.to_vec(), ..Self::default() }
    }

    /// Entries of all kinds.
    pub fn len(&self) -> usize {
        self.clients.len() + self.keys.len() + self.addresses.len()
    }

    /// Nobody is in it.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What tells it from another list, where it is the server's: that of the payload of the reply to `FenceRead`.
    pub fn sum(&self) -> [u8; 32] {
        Sha256::digest(encode_message_pack(self)).into()
    }
}

/// What a client has read of a fence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fence {
    /// The list.
    pub list: FenceList,
    /// What tells it from another list. That is of the bytes that came: another server may write the same list otherwise.
    pub sum: [u8; 32],
}

impl Fence {
    /// Decodes the payload of the reply to `FenceRead`.
    ///
    /// # Errors
    /// It is not one list, or more.
    pub fn decode(payload: &[u8]) -> Result<Self, WireError> {
        Ok(Self { list: decode_message_pack("fence list", payload)?, sum: Sha256::digest(payload).into() })
    }
}

/// Payload of `FenceWrite`: a list in place of the one that there is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FenceChange {
    /// As that of the list.
    pub mode: FenceMode,
    /// As those of the list.
    pub clients: Vec<[u8; 16]>,
    /// As those of the list.
    pub keys: Vec<String>,
    /// As those of the list.
    pub addresses: Vec<String>,
    /// The sum of the list that it takes the place of; `None` for any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<[u8; 32]>,
}

impl FenceChange {
    /// Puts a list in the place of the one with this sum, or of any.
    pub fn new(list: FenceList, before: Option<[u8; 32]>) -> Self {
        let FenceList { mode, clients, keys, addresses } = list;
        Self { mode, clients, keys, addresses, before }
    }

    /// The list.
    pub fn into_list(self) -> FenceList {
        let Self { mode, clients, keys, addresses, .. } = self;
        FenceList { mode, clients, keys, addresses }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    // [ACC-153]
    #[test]
    fn sum_of_a_fence_is_that_of_the_bytes_that_came() {
        let list = FenceList::of_clients(&[[1; 16]]);
        let own = encode_message_pack(&list);
        assert_eq!(Fence::decode(&own).unwrap(), Fence { list: list.clone(), sum: list.sum() });
        // The same, as an array whose length has 16 bits.
        let longer = [&[0xdc, 0, own[0] & 0xf], &own[1..]].concat();
        let found = Fence::decode(&longer).unwrap();
        assert_eq!(found, Fence { list, sum: Sha256::digest(&longer).into() });
        assert_ne!(found.sum, found.list.sum());
    }
}
