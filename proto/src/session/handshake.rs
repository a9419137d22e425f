//! The handshake: `Hello`, its answer, `Authenticate`, its answer. Each state is a type of its own, so a step out of
//! order does not compile.
//!
//! Both sides prove that they know a pre-shared key by an HMAC over both nonces and the whole of the client's
//! `Hello`, so nobody can replay a proof or change what was offered. Data is not encrypted.

use std::sync::Arc;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use super::{HandshakeError, SessionFault};
use crate::wire::{
    Authenticate, AuthenticateReply, Features, Hello, HelloReply, KEY_PROOF_SIZE, Nonce, PROTOCOL_VERSION,
    PROTOCOL_VERSION_MIN, Resume, Status, Welcome, decode_message_pack, encode_message_pack,
};

/// A pre-shared key.
#[derive(Clone, PartialEq, Eq)]
pub struct Key {
    /// Its name, sent in the clear.
    pub name: String,
    /// The secret, never sent.
    pub secret: Arc<[u8]>,
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Key({:?}, …)", self.name)
    }
}

/// Where a server finds keys.
pub trait KeySource {
    /// The key of this name.
    fn key(&self, name: &str) -> Option<Key>;
}

/// Who a client says it is.
#[derive(Clone, Debug)]
pub struct ClientIntroduction {
    /// 16 random bytes, chosen once per client.
    pub client_id: [u8; 16],
    /// For people.
    pub client_name: String,
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
    /// What it offers.
    pub features: Features,
    /// Slots it would like.
    pub slots: u16,
    /// The key it will prove.
    pub key: Option<Key>,
    /// The session to take up again.
    pub resume: Option<Resume>,
}

/// The client's side, waiting for the answer to its `Hello`.
#[derive(Debug)]
pub struct ClientHandshake {
    hello: Vec<u8>,
    nonce: Nonce,
    key: Option<Key>,
}

/// The client's side, waiting for the answer to its `Authenticate`.
#[derive(Debug)]
pub struct Proven {
    expected: Option<[u8; KEY_PROOF_SIZE]>,
    key_name: String,
}

impl ClientHandshake {
    /// Begins; returns the payload of `Hello`. `nonce` comes from the system's random source.
    pub fn begin(introduction: &ClientIntroduction, nonce: Nonce) -> (Self, Vec<u8>) {
        let hello = encode_message_pack(&Hello {
            version_min: PROTOCOL_VERSION_MIN,
            version_max: PROTOCOL_VERSION,
            features: introduction.features.bits(),
            nonce,
            key_name: introduction.key.as_ref().map(|key| key.name.clone()).unwrap_or_default(),
            client_id: introduction.client_id,
            client_name: introduction.client_name.clone(),
            uid: introduction.uid,
            gid: introduction.gid,
            groups: introduction.groups.iter().copied().take(GROUPS_MAX).collect(),
            slots: introduction.slots,
            resume: introduction.resume.clone(),
        });
        (Self { hello: hello.clone(), nonce, key: introduction.key.clone() }, hello)
    }

    /// The answer to `Hello` arrived; returns the payload of `Authenticate`.
    pub fn on_hello_reply(self, status: Status, payload: &[u8]) -> Result<(Proven, Vec<u8>), HandshakeError> {
        if status != Status::OK {
            return Err(HandshakeError::Refused(status));
        }
        let reply: HelloReply =
            decode_message_pack("answer to Hello", payload).map_err(SessionFault::from)?;
        if reply.server_name.len() > NAME_MAX {
            let value = reply.server_name.len() as u64;
            let limit = NAME_MAX as u64;
            let error = crate::wire::WireError::TooLarge { what: "name of a server", value, limit };
            return Err(SessionFault::from(error).into());
        }
        if !(PROTOCOL_VERSION_MIN..=PROTOCOL_VERSION).contains(&reply.version) {
            return Err(HandshakeError::Refused(Status::VERSION));
        }
        let proof = |role: &[u8]| {
            self.key.as_ref().map(|key| prove(key, role, &self.nonce, &reply.nonce, &self.hello))
        };
        if reply.key_required && self.key.is_none() {
            return Err(HandshakeError::KeyRequired);
        }
        let authenticate =
            Authenticate { proof: proof(CLIENT_ROLE).map(|proof| proof.to_vec()).unwrap_or_default() };
        let proven = Proven {
            expected: proof(SERVER_ROLE),
            key_name: self.key.as_ref().map(|k| k.name.clone()).unwrap_or_default(),
        };
        Ok((proven, encode_message_pack(&authenticate)))
    }
}

impl Proven {
    /// The answer to `Authenticate` arrived: the session, if the server proved its key as well.
    pub fn on_authenticate_reply(self, status: Status, payload: &[u8]) -> Result<Welcome, HandshakeError> {
        if status != Status::OK {
            return Err(HandshakeError::Refused(status));
        }
        let reply: AuthenticateReply =
            decode_message_pack("answer to Authenticate", payload).map_err(SessionFault::from)?;
        if self.expected.is_some_and(|expected| expected[..] != reply.proof[..]) {
            return Err(HandshakeError::ServerUnproven(self.key_name));
        }
        let welcome = reply.welcome;
        if welcome.slots == 0 || welcome.credits == 0 || welcome.transfer_size_max == 0 {
            let fault =
                crate::wire::WireError::Invalid { what: "slots, credits or sizes of the welcome", value: 0 };
            return Err(SessionFault::from(fault).into());
        }
        Ok(welcome)
    }
}

/// What a server demands of a connection.
#[derive(Clone, Copy, Debug)]
pub struct ServerTerms {
    /// A key must be proven.
    pub key_required: bool,
}

/// The server's side, waiting for `Authenticate`.
#[derive(Debug)]
pub struct ServerHandshake {
    hello: Hello,
    hello_bytes: Vec<u8>,
    nonce: Nonce,
    key: Option<Key>,
}

impl ServerHandshake {
    /// `Hello` arrived: returns the payload of its answer, or the status to refuse it with. `nonce` comes from the system's random source.
    ///
    /// An unknown key name is only refused after the proof, so that names cannot be tried out.
    pub fn on_hello(
        payload: &[u8],
        terms: ServerTerms,
        keys: &dyn KeySource,
        nonce: Nonce,
        server_name: &str,
    ) -> Result<(Self, Vec<u8>), ServerRefusal> {
        let hello: Hello = decode_message_pack("Hello", payload).map_err(SessionFault::from)?;
        if hello.groups.len() > GROUPS_MAX
            || hello.client_name.len() > NAME_MAX
            || hello.key_name.len() > NAME_MAX
        {
            let fault = crate::wire::WireError::TooLarge {
                what: "a list or name of Hello",
                value: hello.groups.len().max(hello.client_name.len()).max(hello.key_name.len()) as u64,
                limit: NAME_MAX as u64,
            };
            return Err(SessionFault::from(fault).into());
        }
        if hello.version_max < PROTOCOL_VERSION_MIN || hello.version_min > PROTOCOL_VERSION {
            return Err(ServerRefusal::Status(Status::VERSION));
        }
        if terms.key_required && hello.key_name.is_empty() {
            return Err(ServerRefusal::Status(Status::AUTH_REQUIRED));
        }
        let key = keys.key(&hello.key_name).filter(|_| !hello.key_name.is_empty());
        let reply = encode_message_pack(&HelloReply {
            version: PROTOCOL_VERSION.min(hello.version_max),
            nonce,
            key_required: terms.key_required,
            server_name: server_name.to_owned(),
        });
        Ok((Self { hello, hello_bytes: payload.to_vec(), nonce, key }, reply))
    }

    /// `Authenticate` arrived: who it is, and the server's own proof, if the client's holds.
    pub fn on_authenticate(self, payload: &[u8]) -> Result<(Hello, Option<Key>, Vec<u8>), ServerRefusal> {
        let authenticate: Authenticate =
            decode_message_pack("Authenticate", payload).map_err(SessionFault::from)?;
        if self.hello.key_name.is_empty() {
            return match authenticate.proof.len() {
                0 => Ok((self.hello, None, Vec::new())),
                extra => {
                    let fault = crate::wire::WireError::TrailingBytes { what: "proof without a key", extra };
                    Err(SessionFault::from(fault).into())
                }
            };
        }
        let Some(key) = self.key else { return Err(ServerRefusal::Status(Status::AUTH_FAILED)) };
        let mac = authenticator(&key, CLIENT_ROLE, &self.hello.nonce, &self.nonce, &self.hello_bytes);
        if mac.verify_slice(&authenticate.proof).is_err() {
            return Err(ServerRefusal::Status(Status::AUTH_FAILED));
        }
        let proof = prove(&key, SERVER_ROLE, &self.hello.nonce, &self.nonce, &self.hello_bytes);
        Ok((self.hello, Some(key), proof.to_vec()))
    }
}

/// Why a server does not go on with a handshake.
#[derive(Debug, PartialEq, Eq)]
pub enum ServerRefusal {
    /// Answer with this status; then the connection ends.
    Status(Status),
    /// The peer broke the rules; the connection ends.
    Fault(SessionFault),
}

impl From<SessionFault> for ServerRefusal {
    fn from(fault: SessionFault) -> Self {
        Self::Fault(fault)
    }
}

const CLIENT_ROLE: &[u8] = b"dafs client";
const SERVER_ROLE: &[u8] = b"dafs server";
const GROUPS_MAX: usize = 32;
const NAME_MAX: usize = 256;

fn authenticator(key: &Key, role: &[u8], client: &Nonce, server: &Nonce, hello: &[u8]) -> Hmac<Sha256> {
    let mut mac = Hmac::<Sha256>::new_from_slice(&key.secret).expect("HMAC takes keys of any length");
    for part in [role, client, server, hello] {
        mac.update(part);
    }
    mac
}

fn prove(key: &Key, role: &[u8], client: &Nonce, server: &Nonce, hello: &[u8]) -> [u8; KEY_PROOF_SIZE] {
    authenticator(key, role, client, server, hello).finalize().into_bytes().into()
}

#[cfg(test)]
mod tests {
    use super::super::client::tests::welcome;
    use super::*;

    struct Keys(Vec<Key>);

    impl KeySource for Keys {
        fn key(&self, name: &str) -> Option<Key> {
            self.0.iter().find(|key| key.name == name).cloned()
        }
    }

    fn key(name: &str, secret: &[u8]) -> Key {
        Key { name: name.into(), secret: Arc::from(secret) }
    }

    fn introduction(key: Option<Key>) -> ClientIntroduction {
        ClientIntroduction {
            client_id: [7; 16],
            client_name: "test".into(),
            uid: 1,
            gid: 2,
            groups: vec![3],
            features: Features::all(),
            slots: 8,
            key,
            resume: None,
        }
    }

    fn run(client: Option<Key>, server: &[Key], key_required: bool) -> Result<Welcome, String> {
        let keys = Keys(server.to_vec());
        let (handshake, hello) = ClientHandshake::begin(&introduction(client), [1; 32]);
        let (server, reply) =
            ServerHandshake::on_hello(&hello, ServerTerms { key_required }, &keys, [2; 32], "s")
                .map_err(|refusal| format!("{refusal:?}"))?;
        let (proven, authenticate) =
            handshake.on_hello_reply(Status::OK, &reply).map_err(|error| error.to_string())?;
        let (_, _, proof) =
            server.on_authenticate(&authenticate).map_err(|refusal| format!("{refusal:?}"))?;
        let reply = encode_message_pack(&AuthenticateReply { proof, welcome: welcome(4, 4) });
        proven.on_authenticate_reply(Status::OK, &reply).map_err(|error| error.to_string())
    }

    // [SESS-2] [SESS-80] [SESS-3] both sides prove the key
    #[test]
    fn handshake_with_same_key_agrees_and_with_any_other_fails() {
        let good = key("lab", b"secret");
        assert!(run(Some(good.clone()), std::slice::from_ref(&good), true).is_ok());
        assert!(run(None, &[], false).is_ok());
        assert!(run(None, std::slice::from_ref(&good), true).unwrap_err().contains("AUTH_REQUIRED"));
        assert!(
            run(Some(key("lab", b"secreT")), std::slice::from_ref(&good), true)
                .unwrap_err()
                .contains("AUTH_FAILED")
        );
        assert!(run(Some(key("other", b"secret")), &[good], true).unwrap_err().contains("AUTH_FAILED"));
    }

    // [SESS-81]
    #[test]
    fn handshake_with_server_that_lacks_the_key_is_refused_by_the_client() {
        let (handshake, _) = ClientHandshake::begin(&introduction(Some(key("lab", b"secret"))), [1; 32]);
        let reply = encode_message_pack(&HelloReply {
            version: 1,
            nonce: [2; 32],
            key_required: false,
            server_name: String::new(),
        });
        let (proven, _) = handshake.on_hello_reply(Status::OK, &reply).unwrap();
        let reply = encode_message_pack(&AuthenticateReply { proof: Vec::new(), welcome: welcome(4, 4) });
        let error = proven.on_authenticate_reply(Status::OK, &reply).unwrap_err();
        assert_eq!(error, HandshakeError::ServerUnproven("lab".into()));
    }

    // [WIRE-26]
    #[test]
    fn client_refuses_a_server_name_that_is_too_long() {
        for (size, is_taken) in [(0, true), (255, true), (256, true), (257, false)] {
            let (handshake, _) = ClientHandshake::begin(&introduction(None), [1; 32]);
            let reply =
                HelloReply { version: 1, nonce: [2; 32], key_required: false, server_name: "x".repeat(size) };
            let outcome = handshake.on_hello_reply(Status::OK, &encode_message_pack(&reply));
            assert_eq!(outcome.is_ok(), is_taken, "{size}: {outcome:?}");
        }
    }

    // [SESS-83]
    #[test]
    fn handshake_without_common_version_is_refused() {
        let (_, hello) = ClientHandshake::begin(&introduction(None), [1; 32]);
        let mut hello: Hello = decode_message_pack("Hello", &hello).unwrap();
        (hello.version_min, hello.version_max) = (PROTOCOL_VERSION + 1, PROTOCOL_VERSION + 3);
        let refusal = ServerHandshake::on_hello(
            &encode_message_pack(&hello),
            ServerTerms { key_required: false },
            &Keys(vec![]),
            [0; 32],
            "s",
        );
        assert_eq!(refusal.err(), Some(ServerRefusal::Status(Status::VERSION)));
    }

    // [SESS-4] [SESS-85]
    #[test]
    fn handshake_with_later_versions_and_features_settles_on_what_both_speak() {
        let (_, hello) = ClientHandshake::begin(&introduction(None), [1; 32]);
        let mut hello: Hello = decode_message_pack("Hello", &hello).unwrap();
        (hello.version_min, hello.features) = (0, u64::MAX);
        for version_max in [PROTOCOL_VERSION, PROTOCOL_VERSION + 1, u16::MAX] {
            hello.version_max = version_max;
            let bytes = encode_message_pack(&hello);
            let terms = ServerTerms { key_required: false };
            let (_, reply) = ServerHandshake::on_hello(&bytes, terms, &Keys(vec![]), [0; 32], "s").unwrap();
            let reply: HelloReply = decode_message_pack("reply", &reply).unwrap();
            assert_eq!(reply.version, PROTOCOL_VERSION, "up to {version_max}");
        }
    }

    // [SESS-5]
    #[test]
    fn handshake_that_grants_nothing_is_refused_by_the_client() {
        let good = welcome(4, 4);
        let nothing_to_move = Welcome { transfer_size_max: 0, ..good.clone() };
        for (welcome, taken) in
            [(good, true), (welcome(0, 4), false), (welcome(4, 0), false), (nothing_to_move, false)]
        {
            let proven = Proven { expected: None, key_name: String::new() };
            let reply = encode_message_pack(&AuthenticateReply { proof: Vec::new(), welcome });
            let outcome = proven.on_authenticate_reply(Status::OK, &reply);
            assert_eq!(outcome.is_ok(), taken, "{outcome:?}");
        }
    }

    #[test]
    fn handshake_hello_truncated_anywhere_is_a_fault() {
        let (_, hello) = ClientHandshake::begin(&introduction(None), [1; 32]);
        for len in 0..hello.len() {
            let outcome = ServerHandshake::on_hello(
                &hello[..len],
                ServerTerms { key_required: false },
                &Keys(vec![]),
                [0; 32],
                "s",
            );
            assert!(matches!(outcome, Err(ServerRefusal::Fault(_))), "{len} bytes");
        }
    }
}
