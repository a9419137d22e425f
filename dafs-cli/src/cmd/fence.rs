//! `dafs fence`.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::process::ExitCode;

use dafs_client::{Error, Fence as Found, FenceList, FenceMode, Status};
use serde_json::json;

use crate::flags::{Fence, FenceCommand, FenceEntries};
use crate::output::Output;
use crate::quote;
use crate::remote::{Remotes, Target};
use crate::report::{Failure, Result};

/// Times that a change is begun anew, where others change the list meanwhile.
const ROUNDS_MAX: u32 = 64;

/// An id that no other client has: who changes a fence is not to be behind it with the host that he is on.
pub(crate) fn operator_id() -> [u8; 16] {
    let half = || RandomState::new().build_hasher().finish();
    let mut id = [0; 16];
    id[..8].copy_from_slice(&half().to_ne_bytes());
    id[8..].copy_from_slice(&half().to_ne_bytes());
    id
}

pub(crate) fn run(flags: &Fence, remotes: &Remotes) -> Result<ExitCode> {
    match &flags.command {
        FenceCommand::List { json, url } => list(&remotes.target(url)?, *json)?,
        FenceCommand::Add { entries, allow, url } => {
            let (target, more) = (remotes.target(url)?, wanted(entries)?);
            change(&target, "add to", |list| added(list, &more, *allow))?;
        }
        FenceCommand::Remove { entries, url } => {
            let (target, less) = (remotes.target(url)?, wanted(entries)?);
            change(&target, "remove from", |list| removed(list, &less))?;
        }
        FenceCommand::Clear { url } => {
            let target = remotes.target(url)?;
            target
                .export
                .set_fence_list(&FenceList::default())
                .map_err(|error| cannot_set(&target, &error))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn list(target: &Target, is_json: bool) -> Result<()> {
    let list = read(target)?.list;
    let mut out = Output::new();
    let ids: Vec<String> = list.clients.iter().map(shown_id).collect();
    if is_json {
        let mode = if list.mode == FenceMode::Allow { "allow" } else { "deny" };
        let value = json!({ "mode": mode, "clients": ids, "keys": list.keys, "addresses": list.addresses });
        out.line(&value.to_string())?;
        return out.flush();
    }
    out.line(match (list.mode, list.is_empty()) {
        (FenceMode::Deny, true) => "nobody is fenced off",
        (FenceMode::Deny, false) => "fenced off:",
        (FenceMode::Allow, true) => "everybody is fenced off",
        (FenceMode::Allow, false) => "everybody is fenced off but:",
    })?;
    let keys = list.keys.iter().map(|key| ("key", quote::shown(key.as_bytes())));
    let addresses = list.addresses.iter().map(|range| ("address", quote::shown(range.as_bytes())));
    for (kind, value) in ids.into_iter().map(|id| ("client", id)).chain(keys).chain(addresses) {
        out.line(&format!("  {kind} {value}"))?;
    }
    out.flush()
}

fn read(target: &Target) -> Result<Found> {
    target.export.fence().map_err(|error| target.failed("read the fence of", &error))
}

/// Changes the list as it is.
fn change(
    target: &Target,
    action: &str,
    change: impl Fn(FenceList) -> std::result::Result<FenceList, String>,
) -> Result<()> {
    let cannot = |why| Failure::text(format!("cannot {action} the fence of {}: {why}", target.url()));
    let replaced = until_same(|| {
        let before = read(target)?;
        let list = change(before.list.clone()).map_err(cannot)?;
        match target.export.replace_fence_list(&before, &list) {
            Err(error) if error.status() == Some(Status::NOT_SAME) => Ok(false),
            outcome => outcome.map(|()| true).map_err(|error| cannot_set(target, &error)),
        }
    })?;
    match replaced {
        true => Ok(()),
        false => Err(cannot("it was another list each time; try again".to_owned())),
    }
}

/// Tries a change again where another list was there meanwhile; whether it was made.
fn until_same(mut change: impl FnMut() -> Result<bool>) -> Result<bool> {
    for _ in 0..ROUNDS_MAX {
        if change()? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn cannot_set(target: &Target, error: &Error) -> Failure {
    // A longer one does not even fit a message.
    if error.status() == Some(Status::TOO_LARGE) || matches!(error, Error::Invalid(_)) {
        return Failure::text(format!(
            "cannot set the fence of {}: its list would have more than 1,024 entries or 8,000 bytes; \
             name networks (--address 10.0.0.0/8) or keys instead of single clients",
            target.url()
        ));
    }
    target.failed("set the fence of", error)
}

fn wanted(entries: &FenceEntries) -> Result<FenceList> {
    let FenceEntries { client, key, address } = entries.clone();
    let list = FenceList { mode: FenceMode::Deny, clients: client, keys: key, addresses: address };
    match list.is_empty() {
        true => Err(Failure::usage(
            "cannot change the fence: no client is named; give --client, --key or --address".to_owned(),
        )),
        false => Ok(list),
    }
}

/// The list with these entries too, each once.
fn added(mut list: FenceList, more: &FenceList, allow: bool) -> std::result::Result<FenceList, String> {
    let mode = if allow { FenceMode::Allow } else { FenceMode::Deny };
    if list == FenceList::default() {
        list.mode = mode;
    }
    if list.mode != mode {
        return Err(match list.mode {
            FenceMode::Deny => "its list says who is fenced off; leave --allow out, or clear the fence first",
            FenceMode::Allow => {
                "its list says who is not fenced off; add with --allow, or clear the fence first"
            }
        }
        .to_owned());
    }
    fn join<T: Clone + PartialEq>(own: &mut Vec<T>, more: &[T]) {
        for entry in more {
            if !own.contains(entry) {
                own.push(entry.clone());
            }
        }
    }
    join(&mut list.clients, &more.clients);
    join(&mut list.keys, &more.keys);
    join(&mut list.addresses, &more.addresses);
    Ok(list)
}

/// The list without these entries, which are in it. A list of those allowed stays one: its last entry gone, everybody is fenced off.
fn removed(mut list: FenceList, less: &FenceList) -> std::result::Result<FenceList, String> {
    fn take<T: PartialEq>(own: &mut Vec<T>, entry: &T, shown: &str) -> std::result::Result<(), String> {
        let place = own.iter().position(|other| other == entry);
        own.remove(place.ok_or_else(|| format!("{shown} is not in its list"))?);
        Ok(())
    }
    for id in &less.clients {
        take(&mut list.clients, id, &format!("client {}", shown_id(id)))?;
    }
    for key in &less.keys {
        take(&mut list.keys, key, &format!("key {}", quote::shown(key.as_bytes())))?;
    }
    for range in &less.addresses {
        take(&mut list.addresses, range, &format!("address {}", quote::shown(range.as_bytes())))?;
    }
    Ok(list)
}

/// A client id, as the server's log has it.
pub(crate) fn shown_id(id: &[u8; 16]) -> String {
    format!("{:032x}", u128::from_be_bytes(*id))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(mode: FenceMode, keys: &[&str]) -> FenceList {
        let keys = keys.iter().map(|key| (*key).to_owned()).collect();
        FenceList { mode, keys, ..FenceList::default() }
    }

    // [CMD-61]
    #[test]
    fn change_is_given_up_where_the_list_is_another_each_time() {
        let mut rounds = 0;
        let after = |count: u32, rounds: &mut u32| {
            until_same(|| {
                *rounds += 1;
                Ok(*rounds > count)
            })
        };
        assert!(after(ROUNDS_MAX - 1, &mut rounds).unwrap());
        rounds = 0;
        assert!(!after(ROUNDS_MAX, &mut rounds).unwrap());
        assert_eq!(rounds, ROUNDS_MAX);
    }

    // [CMD-61]
    #[test]
    fn entry_is_added_once_and_removed_where_it_is() {
        let (deny, allow) = (FenceMode::Deny, FenceMode::Allow);
        let none = FenceList::default();
        assert_eq!(added(none.clone(), &keys(deny, &["a", "b", "a"]), false), Ok(keys(deny, &["a", "b"])));
        assert_eq!(added(none.clone(), &keys(deny, &["a"]), true), Ok(keys(allow, &["a"])));
        assert_eq!(added(keys(allow, &["a"]), &keys(deny, &["b"]), true), Ok(keys(allow, &["a", "b"])));
        assert!(added(keys(allow, &["a"]), &keys(deny, &["b"]), false).is_err());
        assert!(added(keys(allow, &[]), &keys(deny, &["b"]), false).is_err());
        assert!(added(keys(deny, &["a"]), &keys(deny, &["b"]), true).is_err());
        assert_eq!(removed(keys(allow, &["a"]), &keys(deny, &["a"])), Ok(keys(allow, &[])));
        assert!(removed(keys(deny, &["a"]), &keys(deny, &["b"])).unwrap_err().contains("key"));
    }
}
