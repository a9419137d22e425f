use serde::{Deserialize, Serialize};

/// What a [`FenceList`] says of those in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum FenceMode {
    /// They are fenced off.
    #[default]
    Deny,
    /// All others are fenced off.
    Allow,
}

/// Payload of `FenceWrite` and of the reply to `FenceRead`: who is fenced off an export. A client is in the list by any of the three.
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
}
