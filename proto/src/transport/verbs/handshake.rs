//! The private data of the connection manager: each side states what it receives. Layout in `spec/transport-verbs.md`.

use super::super::util;

pub use super::super::util::HELLO_SIZE;

/// The same, as the connection manager takes it, which carries 56 bytes with a request and more with the answers.
pub(super) const HELLO_LEN: u8 = 32;

/// What one side states when a connection is made.
pub type Hello = util::Hello<{ u64::from_le_bytes(*b"dafs-rdm") }, 1>;

#[cfg(test)]
mod tests {
    use super::*;

    // [VERBS-2]
    #[test]
    fn hello_has_the_bytes_of_the_specification() {
        let hello = Hello { recv_depth: 128, recv_payload_max: 16_384, rdma_depth: 64 };
        let mut golden = [0; HELLO_SIZE];
        golden[..18].copy_from_slice(b"dafs-rdm\x01\x00\x80\x00\x00\x40\x00\x00\x40\x00");
        assert_eq!(hello.encode(), golden);
        assert_eq!(Hello::decode(&golden), Ok(hello));
        // As the connection manager pads it.
        let mut padded = [0; 56];
        padded[..HELLO_SIZE].copy_from_slice(&golden);
        assert_eq!(Hello::decode(&padded), Ok(hello));
        assert_eq!(usize::from(HELLO_LEN), HELLO_SIZE);
    }
}
