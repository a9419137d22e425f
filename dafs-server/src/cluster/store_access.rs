//! How a server and its store prove to each other who they are: certificates, and a user's password.

use std::sync::Arc;

use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use ureq::tls::{Certificate, ClientCert, PemItem, PrivateKey, RootCerts, TlsConfig, parse_pem};

/// What a server shows to its store, and asks of it.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct StoreAccess {
    /// Over TLS (`etcds://`).
    pub tls: Option<StoreTls>,
    /// A user of the store, and the password.
    pub user: Option<(String, String)>,
}

/// For TLS; all of it is PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct StoreTls {
    /// The authorities that have signed the store's certificates.
    pub authorities: String,
    /// This server's certificate, with those between it and its authority, and its key.
    pub client: Option<(String, String)>,
}

impl std::fmt::Debug for StoreAccess {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let user = self.user.as_ref().map(|(name, _)| name);
        f.debug_struct("StoreAccess").field("tls", &self.tls).field("user", &user).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for StoreTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StoreTls").field("shows_certificate", &self.client.is_some()).finish_non_exhaustive()
    }
}

/// Certificates in a PEM text; fails where there is none, or one is damaged.
fn certificates_in(text: &str) -> Result<Vec<Certificate<'static>>, String> {
    let mut found = Vec::new();
    for item in parse_pem(text.as_bytes()) {
        if let PemItem::Certificate(certificate) = item.map_err(|error| format!("it is damaged: {error}"))? {
            found.push(certificate);
        }
    }
    match found.is_empty() {
        true => Err("it has no certificate in PEM".to_owned()),
        false => Ok(found),
    }
}

/// The private key in a PEM text.
pub(crate) fn key_in(text: &str) -> Result<PrivateKey<'static>, String> {
    PrivateKey::from_pem(text.as_bytes()).map_err(|_| "it has no private key in PEM".to_owned())
}

/// Tells what is wrong with certificates of authorities.
pub(crate) fn check_authorities(text: &str) -> Result<(), String> {
    roots_in(text).map(drop)
}

fn roots_in(text: &str) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates_in(text)? {
        let certificate = CertificateDer::from(certificate.der().to_vec());
        roots.add(certificate).map_err(|error| format!("a certificate cannot be used: {error}"))?;
    }
    Ok(roots)
}

/// Tells what is wrong with a certificate and its key, of which each is right by itself.
pub(crate) fn check_client(certificate: &str, key: &str) -> Result<(), String> {
    let chain = certificates_in(certificate)?;
    let chain = chain.iter().map(|certificate| CertificateDer::from(certificate.der().to_vec())).collect();
    let key = PrivateKeyDer::try_from(key_in(key)?.der().to_vec())?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let versions = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let roots = versions.map_err(|error| error.to_string())?.with_root_certificates(RootCertStore::empty());
    roots.with_client_auth_cert(chain, key).map(drop).map_err(|error| error.to_string())
}

impl StoreTls {
    /// Of what was checked.
    pub(super) fn config(&self) -> Result<TlsConfig, String> {
        let client = match &self.client {
            Some((certificate, key)) => {
                check_client(certificate, key)?;
                Some(ClientCert::new_with_certs(&certificates_in(certificate)?, key_in(key)?))
            }
            None => None,
        };
        check_authorities(&self.authorities)?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        Ok(TlsConfig::builder()
            .root_certs(RootCerts::new_with_certs(&certificates_in(&self.authorities)?))
            .client_cert(client)
            .unversioned_rustls_crypto_provider(provider)
            .build())
    }
}
