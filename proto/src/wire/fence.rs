use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::encode_message_pack;

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

    /// What tells it from another list: of the payload of the reply to `FenceRead`.
    pub fn sum(&self) -> [u8; 32] {
        Sha256::digest(encode_message_pack(self)).into()
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
    /// Puts a list in the place of that one, or of any.
    pub fn new(list: FenceList, before: Option<&FenceList>) -> Self {
        let FenceList { mode, clients, keys, addresses } = list;
        Self { mode, clients, keys, addresses, before: before.map(FenceList::sum) }
    }

    /// The list.
    pub fn into_list(self) -> FenceList {
        let Self { mode, clients, keys, addresses, .. } = self;
        FenceList { mode, clients, keys, addresses }
    }
}
