//! The other servers of a cluster, as this one saw them last.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::coordination::Entry;
use super::records::{CephClient, Keys, Member, ServerNumber, decode};

/// What this server knows of the others.
#[derive(Debug, Default)]
pub(super) struct View {
    members: BTreeMap<ServerNumber, Member>,
    live: BTreeSet<ServerNumber>,
    /// Their terms were over at the last look too.
    silent: BTreeSet<ServerNumber>,
    /// Whose place somebody else has taken, and when this server heard of that.
    gone: BTreeMap<ServerNumber, Duration>,
    cut_off: BTreeSet<ServerNumber>,
    /// This server works on taking over from these.
    taking_over: BTreeSet<ServerNumber>,
}

impl View {
    pub(super) fn live(&self) -> impl Iterator<Item = ServerNumber> + '_ {
        self.live.iter().copied()
    }

    pub(super) fn addresses_beside(&self, own: ServerNumber) -> Vec<String> {
        let others = self.live.iter().filter(|number| **number != own);
        others.filter_map(|number| self.members.get(number)).flat_map(|it| it.addresses.clone()).collect()
    }

    /// An operator says that this server can write no more.
    pub(super) fn is_cut_off(&self, server: ServerNumber) -> bool {
        self.cut_off.contains(&server)
    }

    /// Another server that serves has one of these clients too.
    pub(super) fn is_shared(&self, server: ServerNumber, clients: &[CephClient]) -> bool {
        let others =
            self.members.iter().filter(|(number, _)| **number != server && self.live.contains(*number));
        others.flat_map(|(_, member)| &member.ceph).any(|client| clients.contains(client))
    }

    pub(super) fn update(&mut self, keys: &Keys, entries: &[Entry], now: Duration) {
        let live = keys.live();
        let (mut members, mut living, mut gone, mut cut_off) =
            (BTreeMap::new(), BTreeSet::new(), BTreeMap::new(), BTreeSet::new());
        for entry in entries {
            let Some((kind, name)) = entry.key.strip_prefix(&live).and_then(|rest| rest.split_once('/'))
            else {
                continue;
            };
            let Ok(number) = name.parse::<ServerNumber>() else { continue };
            match kind {
                "members" => drop(members.insert(number, decode(&entry.value).unwrap_or_default())),
                "servers" => drop(living.insert(number)),
                "gone" => {
                    let since = self.gone.get(&number).copied().unwrap_or(now);
                    gone.insert(number, since);
                }
                "cut-off" => drop(cut_off.insert(number)),
                _ => {}
            }
        }
        let is_silent = |number: &&ServerNumber| !living.contains(*number) && !self.live.contains(*number);
        self.silent = members.keys().filter(is_silent).copied().collect();
        (self.members, self.live, self.gone, self.cut_off) = (members, living, gone, cut_off);
    }

    /// Servers whose place is to be taken, which nobody of this one works on.
    pub(super) fn begin_takeovers(&mut self, own: ServerNumber) -> Vec<(ServerNumber, Member)> {
        let due = self.silent.iter().filter(|number| **number != own && !self.taking_over.contains(number));
        let due: Vec<_> =
            due.filter_map(|number| Some((*number, self.members.get(number)?.clone()))).collect();
        self.taking_over.extend(due.iter().map(|(number, _)| *number));
        due
    }

    /// Servers that have been gone for longer than this.
    pub(super) fn gone_for(&self, patience: Duration, now: Duration) -> Vec<ServerNumber> {
        let over = self.gone.iter().filter(|(_, since)| now.saturating_sub(**since) > patience);
        over.map(|(number, _)| *number).collect()
    }

    /// This server works on taking over.
    pub(super) fn takes_over(&self) -> bool {
        !self.taking_over.is_empty()
    }

    pub(super) fn end_takeover(&mut self, server: ServerNumber) {
        self.taking_over.remove(&server);
    }
}
