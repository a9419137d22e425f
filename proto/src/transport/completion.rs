use super::TransportError;

/// The caller's name for a posted operation; comes back in its [`Completion`]. Providers do not look into it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OpToken(pub u64);

/// The end of a posted RDMA operation. The memory is the caller's again.
#[derive(Debug)]
pub struct Completion {
    /// The token it was posted with.
    pub token: OpToken,
    /// `Ok`, or why the data did not move. After an error the content of a read's local memory is undefined.
    pub result: Result<(), TransportError>,
}
