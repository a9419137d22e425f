//! What the device's completion statuses mean.

use std::io;

use super::super::{PeerFault, RegionFault, RemoteRange, TransportError};
use super::ffi::ibv_wc_status as status;

/// The work request was done.
pub(super) const SUCCESS: status::Type = status::IBV_WC_SUCCESS;

/// The connection had ended before the device came to the work request.
pub(super) const FLUSHED: status::Type = status::IBV_WC_WR_FLUSH_ERR;

/// Why a work request failed. `remote` is what it reached for, if it was an RDMA operation.
#[cold]
pub(super) fn explain(code: status::Type, vendor_code: u32, remote: Option<RemoteRange>) -> TransportError {
    let refused = |remote: RemoteRange| {
        TransportError::Peer(PeerFault::Region(RegionFault::Refused {
            key: remote.key,
            offset: remote.offset,
            len: remote.len,
        }))
    };
    match (code, remote) {
        (status::IBV_WC_WR_FLUSH_ERR, _) => TransportError::Closed,
        (status::IBV_WC_REM_ACCESS_ERR, Some(remote)) => refused(remote),
        // Devices report an operation beyond the region's end, or longer than they take, as an invalid request.
        (status::IBV_WC_REM_INV_REQ_ERR, Some(remote)) => refused(remote),
        _ => {
            let (kind, what) = meaning(code);
            let text = format!("{what} (status {code}, vendor code {vendor_code:#x})");
            TransportError::system("RDMA", io::Error::new(kind, text))
        }
    }
}

/// In words, with what can be done about it.
fn meaning(code: status::Type) -> (io::ErrorKind, &'static str) {
    use io::ErrorKind as kind;
    match code {
        status::IBV_WC_LOC_LEN_ERR => {
            (kind::InvalidData, "a message was longer than the receive that was posted for it")
        }
        status::IBV_WC_LOC_QP_OP_ERR => {
            (kind::InvalidInput, "the device could not carry out a work request of this side")
        }
        status::IBV_WC_LOC_PROT_ERR => (
            kind::PermissionDenied,
            "a work request named local memory that is not registered, or not with the rights it needs",
        ),
        status::IBV_WC_MW_BIND_ERR => (kind::PermissionDenied, "a memory window could not be bound"),
        status::IBV_WC_BAD_RESP_ERR => {
            (kind::InvalidData, "the peer's device answered what it was not asked")
        }
        status::IBV_WC_LOC_ACCESS_ERR => {
            (kind::PermissionDenied, "the peer wrote to local memory that does not allow it")
        }
        status::IBV_WC_REM_INV_REQ_ERR => (
            kind::InvalidData,
            "the peer's device calls the message invalid: longer than its posted receive, or of a kind it does not take",
        ),
        status::IBV_WC_REM_ACCESS_ERR => {
            (kind::PermissionDenied, "the peer's device refused access to its memory")
        }
        status::IBV_WC_REM_OP_ERR => {
            (kind::ConnectionAborted, "the peer's device could not complete the operation")
        }
        status::IBV_WC_RETRY_EXC_ERR => {
            (kind::TimedOut, "the peer does not answer any more: it crashed, or the network is down")
        }
        status::IBV_WC_RNR_RETRY_EXC_ERR => {
            (kind::TimedOut, "the peer posts no receives: it does not take its messages")
        }
        status::IBV_WC_REM_ABORT_ERR => (kind::ConnectionAborted, "the peer aborted the operation"),
        status::IBV_WC_FATAL_ERR => (kind::Other, "the device failed; look at the kernel's log"),
        status::IBV_WC_RESP_TIMEOUT_ERR => (kind::TimedOut, "the peer's device took too long"),
        status::IBV_WC_GENERAL_ERR => (kind::Other, "the device reports an error without saying which"),
        _ => (kind::Other, "the device reports an error that this program does not know"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::RegionKey;
    use super::*;

    /// [VERBS-24]
    #[test]
    fn every_status_has_its_own_words() {
        // Reliable datagrams have them alone; they share one text with those of the future, which their number tells apart.
        let impossible = [
            status::IBV_WC_LOC_EEC_OP_ERR,
            status::IBV_WC_LOC_RDD_VIOL_ERR,
            status::IBV_WC_REM_INV_RD_REQ_ERR,
            status::IBV_WC_INV_EECN_ERR,
            status::IBV_WC_INV_EEC_STATE_ERR,
        ];
        let words = |code| match explain(code, 3, None) {
            TransportError::System { source, .. } => {
                let (text, number) = (source.to_string(), format!(" (status {code}, vendor code 0x3)"));
                text.strip_suffix(&number).unwrap_or_else(|| panic!("{text}")).to_owned()
            }
            TransportError::Closed => {
                assert_eq!(code, FLUSHED);
                String::new()
            }
            TransportError::Peer(fault) => panic!("{fault}"),
        };
        let mut seen = std::collections::HashSet::from([words(u32::MAX)]);
        for code in status::IBV_WC_LOC_LEN_ERR..=status::IBV_WC_GENERAL_ERR {
            let text = words(code);
            assert_eq!(seen.insert(text.clone()), !impossible.contains(&code), "{code}: {text}");
        }
    }

    /// [VERBS-66]
    #[test]
    fn refused_access_names_the_range() {
        let range = RemoteRange { key: RegionKey(5), offset: 6, len: 7 };
        let refused = RegionFault::Refused { key: RegionKey(5), offset: 6, len: 7 };
        match explain(status::IBV_WC_REM_ACCESS_ERR, 0, Some(range)) {
            TransportError::Peer(PeerFault::Region(fault)) => assert_eq!(fault, refused),
            other => panic!("{other}"),
        }
    }
}
