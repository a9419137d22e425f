//! Who may connect, who may mount what, and as whom a client acts: `spec/protocol/access.md`.
//!
//! [`Access::admit`] decides once per session who the client is, from the best evidence there is: the kernel's word,
//! a proven key, nothing. [`Access::mount`] decides per export whether it may in and under which [`Identity`] its
//! operations run. Data is not encrypted.

mod identity;
mod keys;
mod owner;
mod range;
#[cfg(test)]
mod tests;
mod users;

use std::net::SocketAddr;
use std::sync::Arc;

use dafs_proto::budget::Owner;
use dafs_proto::session::{Key, KeySource, ServerTerms};
use dafs_proto::transport::{Address, PeerCredentials, PeerIdentity};
use dafs_proto::wire::{Hello, Status};

use crate::config::{ExportConfig, ExportKind};
use crate::storage::Identity;
use identity::nobody;
use owner::SocketOwners;
use users::Users;

pub(crate) use identity::parse_id;
pub use identity::{IdentityMapping, NOBODY, ServerIdentity};
pub use keys::{ForcedIdentity, KEY_FILE_SIZE_MAX, KeyEntry, KeyFileError, Keyring, generate_key_line};
pub use range::{AddressRange, RangeError};

/// What access depends on, apart from the rules of each export.
#[derive(Clone, Debug, Default)]
pub struct AccessConfig {
    /// Keys that clients may prove.
    pub keys: Keyring,
    /// As whom the server runs, and whether it can act as others.
    pub server: ServerIdentity,
}

/// Decides about access. Does not block: the kernel knows the owner of a loopback connection, and a thread has asked the user database
/// before (`Access::ask`).
#[derive(Debug)]
pub struct Access {
    config: AccessConfig,
    users: Arc<Users>,
    owners: Arc<SocketOwners>,
}

/// How it is known who a client is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Evidence {
    /// The kernel says so: credentials of a unix socket, or the owner of the socket at the other end of a loopback connection.
    Kernel,
    /// The operator says so: the key's entry names an identity.
    KeyFile,
    /// The client says so, and has proven a key.
    Claim,
    /// It is not known; the client acts as nobody.
    None,
}

/// Who a client is, for as long as its session lasts. A session is resumed only by [the same](ClientIdentity::is_same).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientIdentity {
    /// User, group and supplementary groups, before any export's mapping.
    pub identity: Identity,
    /// How it is known.
    pub evidence: Evidence,
    /// Name of the key it has proven.
    pub key_name: Option<String>,
}

impl ClientIdentity {
    /// The same client, with the same evidence.
    pub fn is_same(&self, other: &Self) -> bool {
        let evidence = |client: &Self| (client.evidence.clone(), client.key_name.clone());
        evidence(self) == evidence(other) && self.identity.is_same(&other.identity)
    }
}

/// What a client may do in an export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountRights {
    /// Nothing may be changed.
    pub read_only: bool,
    /// As whom its operations run.
    pub identity: Identity,
}

impl Access {
    /// Decides by these keys and this server's identity.
    pub fn new(config: AccessConfig) -> Self {
        Self { config, users: Arc::default(), owners: Arc::default() }
    }

    /// The same with other keys. What asks the kernel and the user database goes on: there may be no descriptors to begin anew with.
    pub(crate) fn with_config(&self, config: AccessConfig) -> Self {
        Self { config, users: Arc::clone(&self.users), owners: Arc::clone(&self.owners) }
    }

    /// What is demanded of connections to this listener before anything else: a key, unless it can be reached from this host only.
    pub fn terms(&self, listener: &Address) -> ServerTerms {
        ServerTerms { key_required: key_required(listener) }
    }

    /// Whether all is known for [`Access::admit`]. If not, a thread asks the user database and calls `then`, with whether it is after that.
    /// A client that is admitted sooner is refused.
    ///
    /// # Errors
    /// [`Status::AGAIN`] where the user database cannot be asked now.
    pub(crate) fn ask(
        &self,
        listener: &Address,
        peer: &PeerIdentity,
        key: Option<&Key>,
        then: impl FnOnce(bool) + Send + 'static,
    ) -> Result<bool, Status> {
        let Address::Tcp(server) = listener else { return Ok(true) };
        let (None, Some(client)) = (&peer.credentials, peer.address) else { return Ok(true) };
        let is_refused_or_forced = self.forced(key) != Ok(None);
        if is_refused_or_forced || !server.ip().to_canonical().is_loopback() {
            return Ok(true);
        }
        match self.owners.owner(client, *server) {
            Ok(Some(uid)) if uid != NO_ID => self.users.ask(uid, then).map_err(|error| {
                tracing::warn!(peer = %client, uid, %error, "cannot ask the user database; the session is refused");
                Status::AGAIN
            }),
            _ => Ok(true),
        }
    }

    /// Who this client is. `key` is the one whose proof has been checked; `listener` is where it came in, with the
    /// port that was taken ([`Listener::address`]).
    ///
    /// [`Listener::address`]: dafs_proto::transport::Listener::address
    ///
    /// # Errors
    /// [`Status::AUTH_REQUIRED`] without a key where one is demanded; [`Status::AUTH_FAILED`] with one that was revoked or replaced since
    /// its proof began; [`Status::INVALID`] when it claims a user or group that cannot exist; [`Status::AGAIN`] where the kernel or the
    /// user database would know and cannot be asked now.
    pub fn admit(
        &self,
        listener: &Address,
        peer: &PeerIdentity,
        hello: &Hello,
        key: Option<&Key>,
    ) -> Result<ClientIdentity, Status> {
        if key.is_none() && key_required(listener) {
            return Err(Status::AUTH_REQUIRED);
        }
        if [hello.uid, hello.gid].iter().chain(&hello.groups).any(|id| *id == NO_ID) {
            return Err(Status::INVALID);
        }
        let forced = self.forced(key)?;
        let (identity, evidence) = match (&peer.credentials, listener, forced) {
            (Some(credentials), ..) => (of_credentials(credentials), Evidence::Kernel),
            (None, _, Some(forced)) => (forced.identity(), Evidence::KeyFile),
            // The simulated network has no kernel; its clients are the tests.
            (None, Address::Sim(_), None) if key.is_none() => (claimed(hello), Evidence::Kernel),
            (None, Address::Tcp(server), None) if server.ip().to_canonical().is_loopback() => {
                match self.owner(peer, *server)? {
                    Some(owner) => (owner, Evidence::Kernel),
                    None if key.is_some() => (claimed(hello), Evidence::Claim),
                    None => (nobody(), Evidence::None),
                }
            }
            (None, ..) if key.is_some() => (claimed(hello), Evidence::Claim),
            (None, ..) => (nobody(), Evidence::None),
        };
        Ok(ClientIdentity { identity, evidence, key_name: key.map(|key| key.name.clone()) })
    }

    /// What this client may do in this export. [`Status::NO_EXPORT`] whenever it may not mount it: the same as for an
    /// export that does not exist.
    pub fn mount(
        &self,
        export: &ExportConfig,
        client: &ClientIdentity,
        peer: &PeerIdentity,
    ) -> Result<MountRights, Status> {
        self.rights(export, client, peer).map_err(|reason| {
            let ClientIdentity { identity, evidence, key_name } = client;
            tracing::info!(
                export = export.name,
                peer = %shown(peer),
                uid = identity.uid,
                gid = identity.gid,
                known_by = ?evidence,
                key = key_name.as_deref().unwrap_or("none"),
                demanded = export.keys.join(","),
                "mount refused: {reason}"
            );
            Status::NO_EXPORT
        })
    }

    /// The same, of an export that nobody has asked to mount.
    pub(crate) fn may_mount(
        &self,
        export: &ExportConfig,
        client: &ClientIdentity,
        peer: &PeerIdentity,
    ) -> bool {
        self.rights(export, client, peer).is_ok()
    }

    /// What this client may do in this export, or why it may not mount it.
    fn rights(
        &self,
        export: &ExportConfig,
        client: &ClientIdentity,
        peer: &PeerIdentity,
    ) -> Result<MountRights, &'static str> {
        if !self.admits_address(export, peer) {
            return Err("its address is in none of the export's clients=");
        }
        let key_fits = |name: &String| client.key_name.as_ref() == Some(name);
        if !export.keys.is_empty() && !export.keys.iter().any(key_fits) {
            return Err("it has proven none of the export's keys=");
        }
        let server = &self.config.server;
        // What was checked at the start may have been of another export of this name.
        if !can_act_as(export.squash, &export.kind, server) {
            return Err("this server is not privileged: it cannot act as the export's map= or squash= says");
        }
        let identity = match effective_mapping(export, server) {
            IdentityMapping::Fixed { uid, gid } => Identity { uid, gid, groups: Arc::from([]) },
            IdentityMapping::Server => server.identity.clone(),
            IdentityMapping::Client if client.evidence == Evidence::Claim && !export.no_root_squash => {
                without_root(&client.identity)
            }
            IdentityMapping::Client => client.identity.clone(),
            // The server can only act as itself, and lends that to nobody unasked.
            IdentityMapping::Auto if lends_itself(server, client) => server.identity.clone(),
            IdentityMapping::Auto => {
                return Err(
                    "this server is not privileged and acts as its own user, which the client is not; \
                     squash=server in the export's options allows it",
                );
            }
        };
        Ok(MountRights { read_only: export.read_only, identity })
    }

    /// May change what concerns all clients of an export: the superuser and the server's own user, where more than
    /// their own word says that they are.
    pub fn administers(&self, client: &ClientIdentity) -> bool {
        let known = matches!(client.evidence, Evidence::Kernel | Evidence::KeyFile);
        known && (client.identity.uid == 0 || client.identity.uid == self.config.server.identity.uid)
    }

    /// May publish crossovers: with a key, if its entry says so; without one, the superuser and the server's own user, where the kernel
    /// says that they are.
    pub fn may_publish(&self, client: &ClientIdentity) -> bool {
        match &client.key_name {
            Some(name) => self.config.keys.entry(name).is_some_and(|entry| entry.publishes),
            None => self.administers(client),
        }
    }

    /// A client at this address may mount the export, as far as addresses decide.
    pub(crate) fn admits_address(&self, export: &ExportConfig, peer: &PeerIdentity) -> bool {
        export.clients.is_empty() || export.clients.iter().any(|range| range.contains(peer))
    }

    /// Whom what this client takes is charged to.
    pub(crate) fn budget_owner(client: &ClientIdentity, peer: &PeerIdentity) -> Owner {
        match (&client.evidence, &client.key_name, peer.address) {
            (Evidence::Kernel | Evidence::KeyFile, ..) => Owner::User(client.identity.uid),
            (_, Some(key), _) => Owner::Key(key.as_str().into()),
            (_, None, Some(address)) if !address.ip().to_canonical().is_loopback() => {
                Owner::Address(address.ip().to_canonical())
            }
            _ => Owner::User(NOBODY),
        }
    }

    /// Who the holder of a key is, where the key's entry says so. A key without this entry is no evidence: its holder would otherwise
    /// be believed more than when the entry was there.
    fn forced(&self, key: Option<&Key>) -> Result<Option<ForcedIdentity>, Status> {
        let Some(key) = key else { return Ok(None) };
        match self.config.keys.entry(&key.name) {
            Some(entry) if entry.key == *key => Ok(entry.forced),
            _ => Err(Status::AUTH_FAILED),
        }
    }

    /// Who owns the other end of a loopback connection; `None` where the kernel knows of nobody.
    fn owner(&self, peer: &PeerIdentity, server: SocketAddr) -> Result<Option<Identity>, Status> {
        let Some(client) = peer.address else { return Ok(None) };
        match self.owners.owner(client, server) {
            Ok(Some(NO_ID)) | Ok(None) => {
                tracing::info!(peer = %client, "the owner of the connection is unknown");
                Ok(None)
            }
            Ok(Some(uid)) => self.users.identity(uid).map(Some).ok_or(Status::AGAIN),
            // Whoever it is would act as another.
            Err(error) => {
                tracing::warn!(peer = %client, %error, "cannot ask the kernel who owns a connection; the session is refused");
                Err(Status::AGAIN)
            }
        }
    }
}

impl KeySource for Access {
    fn key(&self, name: &str) -> Option<Key> {
        self.config.keys.key(name)
    }
}

/// Who is at the other end, for the log: of one host, or one user of this host, the same but for the port.
pub(crate) fn shown(peer: &PeerIdentity) -> String {
    match peer {
        PeerIdentity { address: Some(address), .. } => address.to_string(),
        PeerIdentity { credentials: Some(own), .. } => format!("uid {}", own.uid),
        PeerIdentity { address: None, credentials: None } => "unknown".to_owned(),
    }
}

/// Not an id but "leave it as it is" to the system calls that set one; never let through.
const NO_ID: u32 = u32::MAX;

/// Whether clients of a listener must prove a key: other hosts can reach it.
pub(crate) fn key_required(listener: &Address) -> bool {
    match listener {
        Address::Tcp(address) | Address::Verbs(address) => !address.ip().to_canonical().is_loopback(),
        Address::Shm(_) | Address::Sim(_) => false,
    }
}

/// Whether the server can have clients of such an export act so.
pub(crate) fn can_act_as(mapping: IdentityMapping, kind: &ExportKind, server: &ServerIdentity) -> bool {
    server.privileged
        || !kind.capabilities().acts_by_credentials
        || match mapping {
            IdentityMapping::Auto | IdentityMapping::Server => true,
            IdentityMapping::Client => false,
            IdentityMapping::Fixed { uid, gid } => (uid, gid) == (server.identity.uid, server.identity.gid),
        }
}

/// [`IdentityMapping::Auto`] remains only where the server cannot act as its clients.
fn effective_mapping(export: &ExportConfig, server: &ServerIdentity) -> IdentityMapping {
    match export.squash {
        IdentityMapping::Auto if can_act_as(IdentityMapping::Client, &export.kind, server) => {
            IdentityMapping::Client
        }
        mapping => mapping,
    }
}

fn lends_itself(server: &ServerIdentity, client: &ClientIdentity) -> bool {
    match client.evidence {
        Evidence::Kernel => client.identity.uid == server.identity.uid || client.identity.uid == 0,
        Evidence::KeyFile | Evidence::Claim => true,
        Evidence::None => false,
    }
}

fn of_credentials(credentials: &PeerCredentials) -> Identity {
    Identity { uid: credentials.uid, gid: credentials.gid, groups: credentials.groups.as_slice().into() }
}

fn claimed(hello: &Hello) -> Identity {
    Identity { uid: hello.uid, gid: hello.gid, groups: hello.groups.as_slice().into() }
}

/// Neither the user root nor the group root.
fn without_root(identity: &Identity) -> Identity {
    if identity.uid == 0 {
        return nobody();
    }
    let gid = if identity.gid == 0 { NOBODY } else { identity.gid };
    Identity {
        uid: identity.uid,
        gid,
        groups: identity.groups.iter().copied().filter(|gid| *gid != 0).collect(),
    }
}
