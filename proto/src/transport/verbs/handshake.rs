//! The private data of the connection manager: each side states what it receives. Layout in `spec/protocol/verbs.md`.

use super::super::util;

pub use super::super::util::HELLO_SIZE;

/// The same, as the connection manager takes it, which carries 56 bytes with a request and more with the answers.
pub(super) const HELLO_LEN: u8 = 32;

/// What one side states when a connection is made.
pub type Hello = util::Hello<{ u64::from_le_bytes(*b"dafs-rdm") }, 1>;

#[cfg(test)]
mod tests {
    use super::super::super::util::vectors::{check_kinds, vectors};
    use super::*;

    // [VERBS-2] [VERBS-45]
    #[test]
    fn hello_has_the_bytes_of_the_vectors() {
        let text = include_str!("../../../../spec/vectors/verbs.txt");
        let hellos: Vec<_> = vectors(text).into_iter().filter(|vector| vector.is("hello")).collect();
        check_kinds(&hellos, &["hello"]);
        for vector in &hellos {
            match (vector.is_refused, Hello::decode(&vector.bytes)) {
                (true, Err(_)) => {}
                // More than 32 bytes: as the connection manager pads it.
                (false, Ok(hello)) => {
                    assert_eq!(hello.encode(), vector.bytes[..HELLO_SIZE], "{}", vector.name)
                }
                (_, other) => panic!("{}: {other:?}", vector.name),
            }
        }
        let hello = Hello { recv_depth: 128, recv_payload_max: 16_384, rdma_depth: 64 };
        assert_eq!(hello.encode()[..], hellos[0].bytes);
        assert_eq!(usize::from(HELLO_LEN), HELLO_SIZE);
    }
}
