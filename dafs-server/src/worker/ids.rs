//! Names of connections and sessions within the server.

/// A connection's place in the server. The generation tells apart connections that had the same place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConnectionKey {
    /// Place.
    pub index: usize,
    /// Counts connections.
    pub generation: u64,
}

/// A session's place in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SessionKey(pub usize);
