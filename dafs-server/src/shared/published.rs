//! Crossovers that clients have measured and published. They take the place of what the server measured, for the transport and the clients
//! that they were measured for. They outlive the server if it has a store.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};

use dafs_proto::transport::Address;
use dafs_proto::transport::util::lock;
use dafs_proto::wire::{Crossovers, Thresholds};

use super::store::{Change, PublishedEntry, PublishedName, Store, Tell};

/// Entries at most. The least recently used one goes.
pub(crate) const PUBLISHED_MAX: usize = 1024;

/// Bits of an address that name a network.
const V4_PREFIX: u32 = 24;
const V6_PREFIX: u32 = 64;

/// All of them.
#[derive(Default)]
pub(crate) struct Published {
    entries: Mutex<Entries>,
    store: Option<Arc<Store>>,
}

#[derive(Default)]
struct Entries {
    by_name: HashMap<PublishedName, Entry>,
    /// Rises with each use.
    uses: u64,
}

struct Entry {
    crossovers: Crossovers,
    last_use: u64,
}

/// For whom crossovers are: the transport, and the key that the client has proven, or the network that it is in.
pub(crate) fn name_of(listener: &Address, key: Option<&str>, peer: Option<SocketAddr>) -> PublishedName {
    let address = listener.to_string();
    let transport = address.split_once(':').map_or(&*address, |(scheme, _)| scheme).to_owned();
    let whose = match (key, peer.map(|peer| peer.ip().to_canonical())) {
        (Some(key), _) => format!("key {key}"),
        (None, Some(IpAddr::V4(ip))) => {
            let network = ip.to_bits() >> (u32::BITS - V4_PREFIX) << (u32::BITS - V4_PREFIX);
            format!("network {}/{V4_PREFIX}", std::net::Ipv4Addr::from_bits(network))
        }
        (None, Some(IpAddr::V6(ip))) => {
            let network = ip.to_bits() >> (u128::BITS - V6_PREFIX) << (u128::BITS - V6_PREFIX);
            format!("network {}/{V6_PREFIX}", std::net::Ipv6Addr::from_bits(network))
        }
        (None, None) => "local".to_owned(),
    };
    (transport, whose)
}

/// Each crossover is a size that can be inline, or one more: direct never pays.
pub(crate) fn are_within(crossovers: &Crossovers, limits: &Thresholds) -> bool {
    let is_within = |size: u32, limit: u32| (1..=limit.saturating_add(1)).contains(&size);
    let (reads, writes) = (limits.read_inline_max, limits.write_inline_max);
    is_within(crossovers.read_registered, reads)
        && is_within(crossovers.read_unregistered, reads)
        && is_within(crossovers.write_registered, writes)
        && is_within(crossovers.write_unregistered, writes)
}

/// The same, where messages have become smaller since.
fn cut(crossovers: &Crossovers, limits: &Thresholds) -> Crossovers {
    let cut = |size: u32, limit: u32| size.clamp(1, limit.saturating_add(1));
    let (reads, writes) = (limits.read_inline_max, limits.write_inline_max);
    Crossovers {
        read_registered: cut(crossovers.read_registered, reads),
        read_unregistered: cut(crossovers.read_unregistered, reads),
        write_registered: cut(crossovers.write_registered, writes),
        write_unregistered: cut(crossovers.write_unregistered, writes),
    }
}

impl Published {
    /// Takes up what a store has kept, and keeps there what comes from now on.
    pub(super) fn keep_in(&mut self, store: Arc<Store>, mut kept: Vec<(PublishedName, PublishedEntry)>) {
        kept.sort_by_key(|(_, entry)| entry.order);
        let surplus = kept.len().saturating_sub(PUBLISHED_MAX);
        let mut entries = lock(&self.entries);
        for (name, entry) in kept.into_iter().skip(surplus) {
            entries.uses = entries.uses.max(entry.order);
            entries.by_name.insert(name, Entry { crossovers: entry.crossovers, last_use: entry.order });
        }
        drop(entries);
        self.store = Some(store);
    }

    /// Puts what was published for these clients into thresholds.
    pub(crate) fn apply(&self, name: &PublishedName, thresholds: &mut Thresholds) {
        let mut entries = lock(&self.entries);
        let Entries { by_name, uses } = &mut *entries;
        if let Some(entry) = by_name.get_mut(name) {
            *uses += 1;
            entry.last_use = *uses;
            thresholds.crossovers = cut(&entry.crossovers, thresholds);
        }
    }

    /// They are kept in a store.
    pub(crate) fn are_kept(&self) -> bool {
        self.store.is_some()
    }

    /// Publishes crossovers at once. Where there is a store they are written there too, and `tell` is called. Where that cannot be, they
    /// hold all the same, and are written later.
    pub(crate) fn publish(&self, name: PublishedName, crossovers: Crossovers, tell: Tell) {
        let mut entries = lock(&self.entries);
        entries.uses += 1;
        let order = entries.uses;
        entries.by_name.insert(name.clone(), Entry { crossovers, last_use: order });
        let evicted = (entries.by_name.len() > PUBLISHED_MAX).then(|| entries.evict()).flatten();
        // Nobody publishes meanwhile: what is written last is what was published last.
        if let Some(store) = &self.store {
            if let Some(evicted) = evicted {
                store.note(Change::Published(evicted, None), None);
            }
            store.note(Change::Published(name, Some(PublishedEntry { order, crossovers })), Some(tell));
        }
    }
}

impl Entries {
    fn evict(&mut self) -> Option<PublishedName> {
        let oldest = self.by_name.iter().min_by_key(|(_, entry)| entry.last_use);
        let oldest = oldest.map(|(name, _)| name.clone())?;
        self.by_name.remove(&oldest);
        Some(oldest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(size: u32) -> Crossovers {
        Crossovers {
            read_registered: size,
            read_unregistered: size,
            write_registered: size,
            write_unregistered: size,
        }
    }

    fn limits(read_inline_max: u32, write_inline_max: u32) -> Thresholds {
        Thresholds { read_inline_max, write_inline_max, crossovers: all(77) }
    }

    fn applied(published: &Published, name: &PublishedName, limits: Thresholds) -> Crossovers {
        let mut thresholds = limits;
        published.apply(name, &mut thresholds);
        thresholds.crossovers
    }

    fn of_key(key: &str) -> PublishedName {
        name_of(&Address::Sim(1), Some(key), None)
    }

    // [ACC-173]
    #[test]
    fn name_has_the_transport_and_the_key_or_the_network() {
        let tcp = Address::Tcp("0.0.0.0:7".parse().unwrap());
        let from = |address: &str| Some(address.parse().unwrap());
        let name = |key, peer| name_of(&tcp, key, peer);
        assert_eq!(name(Some("a"), from("192.0.2.1:5")), name(Some("a"), from("10.0.0.1:5")));
        assert_ne!(name(Some("a"), None), name(Some("b"), None));
        assert_ne!(name(Some("a"), None), name_of(&Address::Shm("/s".into()), Some("a"), None));
        assert_eq!(name(None, from("192.0.2.1:5")), name(None, from("192.0.2.255:6")));
        assert_eq!(name(None, from("192.0.2.1:5")), name(None, from("[::ffff:192.0.2.9]:5")));
        assert_ne!(name(None, from("192.0.2.1:5")), name(None, from("192.0.3.1:5")));
        assert_eq!(name(None, from("[fd00::1]:5")), name(None, from("[fd00::ffff:0:0:9]:5")));
        assert_ne!(name(None, from("[fd00::1]:5")), name(None, from("[fd00:0:0:1::1]:5")));
        assert_ne!(name(Some("local"), None), name(None, None));
    }

    // [ACC-172]
    #[test]
    fn crossovers_are_sizes_of_messages_or_one_more() {
        for (size, is_within) in [(0, false), (1, true), (101, true), (102, false), (u32::MAX, false)] {
            assert_eq!(
                are_within(&Crossovers { read_registered: size, ..all(1) }, &limits(100, 9)),
                is_within
            );
            assert_eq!(
                are_within(&Crossovers { read_unregistered: size, ..all(1) }, &limits(100, 9)),
                is_within
            );
            assert_eq!(
                are_within(&Crossovers { write_registered: size, ..all(1) }, &limits(9, 100)),
                is_within
            );
            assert_eq!(
                are_within(&Crossovers { write_unregistered: size, ..all(1) }, &limits(9, 100)),
                is_within
            );
        }
        assert!(are_within(&all(u32::MAX), &limits(u32::MAX, u32::MAX)));
    }

    // [ACC-173]
    #[test]
    fn published_crossovers_are_for_their_name_alone_and_cut_to_messages() {
        let published = Published::default();
        published.publish(of_key("a"), all(50), Box::new(|_| {}));
        assert_eq!(applied(&published, &of_key("a"), limits(100, 100)), all(50));
        assert_eq!(applied(&published, &of_key("b"), limits(100, 100)), all(77));
        let cut = applied(&published, &of_key("a"), limits(20, 100));
        assert_eq!((cut.read_registered, cut.write_registered), (21, 50));
    }

    #[test]
    fn least_recently_used_entry_goes_beyond_the_bound() {
        let published = Published::default();
        let key = |number: usize| of_key(&number.to_string());
        for number in 0..PUBLISHED_MAX {
            published.publish(key(number), all(50), Box::new(|_| {}));
        }
        assert_eq!(applied(&published, &key(0), limits(100, 100)), all(50), "all fit");
        published.publish(key(PUBLISHED_MAX), all(50), Box::new(|_| {}));
        assert_eq!(lock(&published.entries).by_name.len(), PUBLISHED_MAX);
        assert_eq!(applied(&published, &key(1), limits(100, 100)), all(77), "it was used least recently");
        for number in [0, 2, PUBLISHED_MAX] {
            assert_eq!(applied(&published, &key(number), limits(100, 100)), all(50), "{number}");
        }
        published.publish(key(2), all(60), Box::new(|_| {}));
        assert_eq!(
            applied(&published, &key(3), limits(100, 100)),
            all(50),
            "one that is there takes no place"
        );
    }

    // [STATE-8]
    #[test]
    fn published_crossovers_are_there_again_after_a_restart() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state");
        let open = || {
            let (store, kept) = Store::open(&path).unwrap();
            let (store, mut published) = (Arc::new(store), Published::default());
            published.keep_in(Arc::clone(&store), kept.published);
            (store, published)
        };
        let (store, published) = open();
        for number in 0..=PUBLISHED_MAX {
            published.publish(of_key(&number.to_string()), all(50), Box::new(|_| {}));
        }
        published.publish(of_key("7"), all(60), Box::new(|_| {}));
        store.close();
        let (store, published) = open();
        assert_eq!(lock(&published.entries).by_name.len(), PUBLISHED_MAX);
        assert_eq!(applied(&published, &of_key("7"), limits(100, 100)), all(60));
        assert_eq!(applied(&published, &of_key("0"), limits(100, 100)), all(77));
        published.publish(of_key("more"), all(50), Box::new(|_| {}));
        assert_eq!(applied(&published, &of_key("1"), limits(100, 100)), all(77), "the order was kept too");
        store.close();
    }
}
