//! The id of a host's clients.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// Names the use that is made of the machine's id here, so that nobody learns that id from what is made of it.
const APPLICATION: &[u8] = b"dafs client id 1";

/// The client id of all programs of a host that choose none: made of the host's machine-id(5), the text of `/etc/machine-id`, in a way that
/// does not tell it. `None` where that is not 32 hexadecimal digits.
pub fn host_client_id(machine_id: &str) -> Option<[u8; 16]> {
    let digits = machine_id.trim();
    if digits.len() != 32 || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    let machine: u128 = u128::from_str_radix(digits, 16).ok()?;
    let mut mac = Hmac::<Sha256>::new_from_slice(&machine.to_be_bytes()).ok()?;
    mac.update(APPLICATION);
    mac.finalize().into_bytes()[..16].try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    // [CLI-164]
    #[test]
    fn client_id_is_stable_on_a_host_and_differs_between_hosts() {
        let here = host_client_id("0123456789abcdef0123456789abcdef\n").unwrap();
        assert_eq!(host_client_id("0123456789ABCDEF0123456789abcdef"), Some(here));
        assert_ne!(host_client_id("0123456789abcdef0123456789abcdee"), Some(here));
        assert_ne!(here, 0x0123_4567_89ab_cdef_0123_4567_89ab_cdef_u128.to_be_bytes(), "it tells nothing");
        for wrong in [
            "",
            "uninitialized",
            "0123456789abcdef",
            "g123456789abcdef0123456789abcdef",
            "+123456789abcdef0123456789abcdef",
        ] {
            assert_eq!(host_client_id(wrong), None, "{wrong}");
        }
    }
}
