//! The servers: one that has the names, and the data servers, each on a host of its own.

use std::path::Path;

use anyhow::Context;
use dafs_client::{Config, Key, Url, WaitPolicy};
use dafs_stripe::Volume;

use crate::links::Network;
use crate::subject::Subjects;
use crate::subject::server::{Server, new_key};

/// Running servers, and the network between them and this thread.
pub(super) struct Cluster {
    /// Its hosts are those of the data servers, in their order.
    pub(super) network: Network,
    names: Server,
    data: Vec<Server>,
    key: Key,
}

impl Cluster {
    /// Moves the calling thread into a network of its own.
    pub(super) fn start(subjects: &mut dyn Subjects, count: usize, link_rate: u32) -> anyhow::Result<Self> {
        let network = Network::new(count, link_rate)?;
        let key = new_key()?;
        // The names are with the first, as one of PVFS's I/O nodes has them.
        let names = subjects.on_host(network.hosts.first().context("no host")?, &key, "names")?;
        let numbered = (1..).zip(&network.hosts);
        let data = numbered.map(|(number, host)| subjects.on_host(host, &key, &format!("data-{number}")));
        let data = data.collect::<anyhow::Result<Vec<_>>>()?;
        let cluster = Self { network, names, data, key };
        let volume = cluster.volume()?;
        for (number, server) in (1..).zip(&cluster.data) {
            let url = Url::parse(server.address("tcp", "bench")?.as_ref())?;
            volume.add_server(&format!("s{number}"), &url)?;
        }
        Ok(cluster)
    }

    /// Sessions of one more client.
    pub(super) fn volume(&self) -> anyhow::Result<Volume> {
        // Waits are long: spinning would take the CPU from other clients, and from servers.
        let config = Config { key: Some(self.key.clone()), wait: WaitPolicy::Event, ..Config::default() };
        Ok(Volume::connect(self.address()?, &config)?)
    }

    /// Where the names are.
    pub(super) fn address(&self) -> anyhow::Result<String> {
        self.names.address("tcp", "bench")
    }

    /// The key of all servers.
    pub(super) fn key_file(&self) -> Option<&Path> {
        self.names.key_file()
    }

    /// What the data servers have used of CPUs, in nanoseconds.
    pub(super) fn cpu_ns(&self) -> std::io::Result<u64> {
        self.data.iter().map(Server::cpu_ns).sum()
    }
}
