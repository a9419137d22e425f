//! etcd, version 3, by its JSON gateway: HTTP and JSON need no compiler of protocol buffers and no asynchronous runtime, and a server asks
//! seldom enough that their cost is small beside the store's own.

use std::io::ErrorKind;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use dafs_proto::transport::util::lock;
use serde_json::{Value, json};

use super::coordination::{
    Change, Committed, Compare, Coordination, CoordinationError, Entry, LeaseId, Transaction,
};
use super::settings::ClusterAddress;
use super::store_access::StoreAccess;

/// etcd refuses larger requests, bytes; an answer is not longer either, but for reads of many keys.
const ANSWER_SIZE_MAX: u64 = 64 << 20;

/// A cluster of etcd.
pub(crate) struct Etcd {
    agent: ureq::Agent,
    /// `http://host:port` of each member.
    members: Vec<String>,
    /// The one that answered last.
    current: AtomicUsize,
    shows_certificate: bool,
    /// A user, and the password.
    user: Option<(String, String)>,
    /// What proves who asks, until etcd forgets it.
    token: Mutex<Option<String>>,
}

/// Why a member has not answered as asked.
struct Fault {
    error: CoordinationError,
    /// It does not know who asks, or not any more.
    is_of_token: bool,
}

impl From<CoordinationError> for Fault {
    fn from(error: CoordinationError) -> Self {
        Self { error, is_of_token: false }
    }
}

impl Etcd {
    /// Of the members of this address; none is asked yet. A call takes no longer than `time_max` at each. Fails where certificates cannot
    /// be used.
    pub(crate) fn new(
        address: &ClusterAddress,
        access: &StoreAccess,
        time_max: Duration,
    ) -> Result<Self, String> {
        let config = ureq::Agent::config_builder()
            .timeout_global(Some(time_max))
            .http_status_as_error(false)
            .max_idle_connections_per_host(16);
        let config = match &access.tls {
            Some(tls) => config.tls_config(tls.config()?),
            None => config,
        };
        let scheme = if address.is_secure { "https" } else { "http" };
        let members = address.members.iter().map(|member| format!("{scheme}://{member}")).collect();
        let (current, token) = (AtomicUsize::new(0), Mutex::default());
        let shows_certificate = access.tls.as_ref().is_some_and(|tls| tls.client.is_some());
        let (agent, user) = (config.build().into(), access.user.clone());
        Ok(Self { agent, members, current, shows_certificate, user, token })
    }

    fn call(&self, path: &str, body: &Value) -> Result<Value, CoordinationError> {
        let begin = self.current.load(Ordering::Relaxed);
        let mut last = CoordinationError::Unreachable("no member is named".into());
        for step in 0..self.members.len() {
            let index = (begin + step) % self.members.len();
            match self.call_as_user(&self.members[index], path, body) {
                Err(error @ CoordinationError::Unreachable(_)) => last = error,
                answer => {
                    self.current.store(index, Ordering::Relaxed);
                    return answer;
                }
            }
        }
        Err(last)
    }

    /// A call that etcd did not carry out, since it does not know the token, is made once more with another.
    fn call_as_user(&self, member: &str, path: &str, body: &Value) -> Result<Value, CoordinationError> {
        let Some(user) = &self.user else {
            return self.call_member(member, path, body, None).map_err(|fault| fault.error);
        };
        let known = lock(&self.token).clone();
        if known.is_some() {
            match self.call_member(member, path, body, known.as_deref()) {
                Err(fault) if fault.is_of_token => {}
                answer => return answer.map_err(|fault| fault.error),
            }
        }
        let token = self.authenticate(member, user, known.as_ref())?;
        self.call_member(member, path, body, Some(&token)).map_err(|fault| fault.error)
    }

    /// A token in place of this one, unless another thread has got one meanwhile.
    fn authenticate(
        &self,
        member: &str,
        (name, password): &(String, String),
        known: Option<&String>,
    ) -> Result<String, CoordinationError> {
        let mut current = lock(&self.token);
        if let Some(newer) = current.as_ref().filter(|newer| Some(*newer) != known) {
            return Ok(newer.clone());
        }
        let body = json!({"name": name, "password": password});
        let answer = self.call_member(member, "/v3/auth/authenticate", &body, None);
        let answer = answer.map_err(|fault| match fault.error {
            CoordinationError::Refused(words) => {
                CoordinationError::Refused(format!("{words} (--etcd-user {name})"))
            }
            error => error,
        })?;
        let token = answer["token"].as_str().ok_or_else(|| {
            CoordinationError::Refused("no token in its answer to a user's password".to_owned())
        })?;
        *current = Some(token.to_owned());
        Ok(token.to_owned())
    }

    /// What may be wrong where etcd has closed a connection.
    fn hint(&self, error: &ureq::Error, member: &str) -> &'static str {
        let is_closed = match error {
            ureq::Error::Io(error) => matches!(
                error.kind(),
                ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe
            ),
            _ => false,
        };
        // Whether its alert or the end of the connection is seen first is chance.
        let is_refused = is_closed || error.to_string().contains("received fatal alert");
        match (member.starts_with("https:"), self.shows_certificate) {
            (false, _) if is_closed => "; if it speaks TLS, write etcds://",
            (true, false) if is_refused => "; if it wants a certificate, give --etcd-certificate-file",
            _ => "",
        }
    }

    fn call_member(
        &self,
        member: &str,
        path: &str,
        body: &Value,
        token: Option<&str>,
    ) -> Result<Value, Fault> {
        let unreachable =
            |error: &dyn std::fmt::Display| CoordinationError::Unreachable(format!("{member}: {error}"));
        let mut request = self.agent.post(format!("{member}{path}"));
        if let Some(token) = token {
            request = request.header("Authorization", token);
        }
        let sent = request.send(body.to_string().as_bytes());
        let hint = |error: &ureq::Error| self.hint(error, member);
        let mut answer = sent.map_err(|error| unreachable(&format!("{error}{}", hint(&error))))?;
        let status = answer.status().as_u16();
        let text = answer.body_mut().with_config().limit(ANSWER_SIZE_MAX).read_to_string();
        let text = text.map_err(|error| unreachable(&error))?;
        let value: Value = serde_json::from_str(&text).map_err(|_| {
            // Such as where it wants TLS.
            let said: String = text.chars().filter(|letter| !letter.is_control()).take(SAID_MAX).collect();
            unreachable(&format!("an answer that is no JSON, HTTP status {status}: {said}"))
        })?;
        // A stream has its errors in answers that are well by themselves.
        let inner = value["error"].as_object().map(|_| &value["error"]);
        if status == 200 && inner.is_none() {
            return Ok(value);
        }
        let error = inner.unwrap_or(&value);
        let words = error["error"].as_str().or(error["message"].as_str()).unwrap_or("no reason given");
        let code = error["code"].as_i64().or(error["grpc_code"].as_i64());
        let is_of_token = code == Some(UNAUTHENTICATED) || TOKEN_WORDS.iter().any(|it| words.contains(it));
        Err(Fault { error: fault_of(code, words, member), is_of_token })
    }
}

/// What etcd says where it does not know who asks, under different codes.
const TOKEN_WORDS: [&str; 3] = ["invalid auth token", "user name is empty", "revision of auth store is old"];
/// The code of gRPC for that.
const UNAUTHENTICATED: i64 = 16;
/// Letters of an answer that is not understood, at most.
const SAID_MAX: usize = 200;

/// Codes of gRPC: those of a member that cannot serve now are as if it were not there.
fn fault_of(code: Option<i64>, words: &str, member: &str) -> CoordinationError {
    const CANCELLED: i64 = 1;
    const DEADLINE_EXCEEDED: i64 = 4;
    const NOT_FOUND: i64 = 5;
    const RESOURCE_EXHAUSTED: i64 = 8;
    const UNAVAILABLE: i64 = 14;
    match code {
        Some(NOT_FOUND) if words.contains("lease") => CoordinationError::NoLease,
        Some(RESOURCE_EXHAUSTED) if words.contains("space") => CoordinationError::NoSpace(words.to_owned()),
        // It has too many requests at the moment.
        Some(CANCELLED | DEADLINE_EXCEEDED | UNAVAILABLE | RESOURCE_EXHAUSTED) => {
            CoordinationError::Unreachable(format!("{member}: {words}"))
        }
        _ if words.contains("user name is empty") => {
            CoordinationError::Refused(format!("{words}; it wants a user: --etcd-user"))
        }
        _ => CoordinationError::Refused(words.to_owned()),
    }
}

fn base64(bytes: impl AsRef<[u8]>) -> String {
    STANDARD.encode(bytes)
}

/// The first key behind all that begin so.
fn end_of(prefix: &str) -> Vec<u8> {
    let mut end = prefix.as_bytes().to_vec();
    if let Some(last) = end.last_mut() {
        // Prefixes are text, whose bytes are below 255.
        *last += 1;
    }
    end
}

fn compare_json(compare: &Compare) -> Value {
    let (key, target, result, number) = match compare {
        Compare::Absent(key) => (key, "create_revision", "EQUAL", 0),
        Compare::Present(key) => (key, "create_revision", "GREATER", 0),
        Compare::At(key, revision) => (key, "mod_revision", "EQUAL", *revision),
        Compare::NotAfter(key, revision) => (key, "mod_revision", "LESS", revision + 1),
    };
    let name = if target == "mod_revision" { "MOD" } else { "CREATE" };
    json!({"key": base64(key), "target": name, "result": result, target: number.to_string()})
}

fn change_json(change: &Change) -> Value {
    match change {
        Change::Put(key, value, lease) => {
            let lease = lease.map_or(0, |lease| lease.0).to_string();
            json!({"request_put": {"key": base64(key), "value": base64(value), "lease": lease}})
        }
        Change::Delete(key) => json!({"request_delete_range": {"key": base64(key)}}),
        Change::DeleteAll(prefix) => {
            json!({"request_delete_range": {"key": base64(prefix), "range_end": base64(end_of(prefix))}})
        }
    }
}

/// Numbers of 64 bits are text in JSON, and absent where they are 0.
fn number(value: &Value) -> u64 {
    value.as_str().and_then(|text| text.parse().ok()).or(value.as_u64()).unwrap_or(0)
}

fn revision_of(answer: &Value) -> u64 {
    number(&answer["header"]["revision"])
}

fn entries_of(range: &Value) -> Result<Vec<Entry>, CoordinationError> {
    let strange = || CoordinationError::Refused("an entry that cannot be read".into());
    let bytes = |value: &Value| match value {
        Value::Null => Ok(Vec::new()),
        Value::String(text) => STANDARD.decode(text).map_err(|_| strange()),
        _ => Err(strange()),
    };
    let entry = |kv: &Value| {
        let key = String::from_utf8(bytes(&kv["key"])?).map_err(|_| strange())?;
        Ok(Entry { key, value: bytes(&kv["value"])?, revision: number(&kv["mod_revision"]) })
    };
    range["kvs"].as_array().into_iter().flatten().map(entry).collect()
}

impl Coordination for Etcd {
    fn commit(&self, transaction: &Transaction) -> Result<Committed, CoordinationError> {
        let reads = transaction.reads.iter().map(|key| json!({"request_range": {"key": base64(key)}}));
        let body = json!({
            "compare": transaction.compares.iter().map(compare_json).collect::<Vec<_>>(),
            "success": transaction.changes.iter().map(change_json).collect::<Vec<_>>(),
            "failure": reads.collect::<Vec<_>>(),
        });
        let answer = self.call("/v3/kv/txn", &body)?;
        let succeeded = answer["succeeded"].as_bool().unwrap_or(false);
        let mut found = Vec::new();
        if !succeeded {
            for response in answer["responses"].as_array().into_iter().flatten() {
                found.extend(entries_of(&response["response_range"])?);
            }
        }
        Ok(Committed { succeeded, revision: revision_of(&answer), found })
    }

    fn read(&self, prefix: &str) -> Result<(Vec<Entry>, u64), CoordinationError> {
        let body = json!({"key": base64(prefix), "range_end": base64(end_of(prefix))});
        let answer = self.call("/v3/kv/range", &body)?;
        Ok((entries_of(&answer)?, revision_of(&answer)))
    }

    fn read_changed(
        &self,
        prefix: &str,
        since: u64,
        count: usize,
    ) -> Result<(Option<Vec<Entry>>, u64), CoordinationError> {
        let body = json!({
            "key": base64(prefix), "range_end": base64(end_of(prefix)),
            "min_mod_revision": (since + 1).to_string(), "keys_only": true,
        });
        let answer = self.call("/v3/kv/range", &body)?;
        // It counts all keys, and names those that were written later: one that is gone is missed by its number.
        let is_written = answer["kvs"].as_array().is_some_and(|written| !written.is_empty());
        if !is_written && number(&answer["count"]) == count as u64 {
            return Ok((None, revision_of(&answer)));
        }
        let (entries, revision) = self.read(prefix)?;
        Ok((Some(entries), revision))
    }

    fn grant(&self, time: Duration) -> Result<LeaseId, CoordinationError> {
        let answer = self.call("/v3/lease/grant", &json!({"TTL": time.as_secs().to_string()}))?;
        let id = answer["ID"].as_str().and_then(|text| text.parse().ok());
        id.map(LeaseId).ok_or_else(|| CoordinationError::Refused("no lease in its answer".into()))
    }

    fn renew(&self, lease: LeaseId) -> Result<(), CoordinationError> {
        let answer = self.call("/v3/lease/keepalive", &json!({"ID": lease.0.to_string()}))?;
        // A stream of answers, of which there is one; one without a time to live is of a lease that is over.
        if number(&answer["result"]["TTL"]) == 0 { Err(CoordinationError::NoLease) } else { Ok(()) }
    }

    fn revoke(&self, lease: LeaseId) -> Result<(), CoordinationError> {
        match self.call("/v3/lease/revoke", &json!({"ID": lease.0.to_string()})) {
            Ok(_) | Err(CoordinationError::NoLease) => Ok(()),
            Err(error) => Err(error),
        }
    }
}
