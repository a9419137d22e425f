//! The conformance suite on every provider of this build.

mod sim {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use dafs_proto::transport::conformance::Fixture;
    use dafs_proto::transport::sim::{FaultPlan, NodeId, SimNet};
    use dafs_proto::transport::{Address, Domain};

    struct Sim {
        net: SimNet,
        nodes: AtomicU32,
    }

    impl Sim {
        fn new(plan: FaultPlan) -> Self {
            Self { net: SimNet::new(1, plan), nodes: AtomicU32::new(0) }
        }
    }

    impl Fixture for Sim {
        fn domain(&self) -> Arc<dyn Domain> {
            Arc::new(self.net.domain(NodeId(self.nodes.fetch_add(1, Ordering::Relaxed))))
        }

        fn address(&self) -> Address {
            Address::Sim(self.nodes.fetch_add(1, Ordering::Relaxed))
        }
    }

    dafs_proto::conformance_suite!(Sim::new(FaultPlan::calm()));

    /// The other ways in which a provider may answer: done at once, memory mapped.
    mod mapped {
        use super::*;

        dafs_proto::conformance_suite!(Sim::new(FaultPlan {
            done_ppm: 500_000,
            remote_mapped: true,
            ..FaultPlan::calm()
        }));
    }
}

#[cfg(feature = "tcp")]
mod tcp {
    use std::net::{Ipv4Addr, SocketAddr};
    use std::sync::Arc;

    use dafs_proto::transport::conformance::Fixture;
    use dafs_proto::transport::tcp::TcpDomain;
    use dafs_proto::transport::{Address, Domain, WaitPolicy};

    struct Tcp(WaitPolicy);

    impl Fixture for Tcp {
        fn domain(&self) -> Arc<dyn Domain> {
            Arc::new(TcpDomain::new())
        }

        fn address(&self) -> Address {
            Address::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))
        }

        fn wait(&self) -> WaitPolicy {
            self.0
        }
    }

    dafs_proto::conformance_suite!(Tcp(WaitPolicy::Event));

    mod adaptive {
        use super::*;

        dafs_proto::conformance_suite!(Tcp(WaitPolicy::Adaptive));
    }

    mod busy {
        use super::*;

        dafs_proto::conformance_suite!(Tcp(WaitPolicy::Busy));
    }
}

#[cfg(feature = "shm")]
mod shm {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use dafs_proto::transport::conformance::Fixture;
    use dafs_proto::transport::shm::ShmDomain;
    use dafs_proto::transport::{Address, Domain, WaitPolicy};

    struct Shm {
        directory: tempfile::TempDir,
        sockets: AtomicU32,
        wait: WaitPolicy,
    }

    impl Shm {
        fn new(wait: WaitPolicy) -> Self {
            let directory = tempfile::tempdir().expect("a directory for sockets");
            Self { directory, sockets: AtomicU32::new(0), wait }
        }
    }

    impl Fixture for Shm {
        fn domain(&self) -> Arc<dyn Domain> {
            Arc::new(ShmDomain::new())
        }

        fn address(&self) -> Address {
            let number = self.sockets.fetch_add(1, Ordering::Relaxed);
            Address::Shm(self.directory.path().join(number.to_string()))
        }

        fn wait(&self) -> WaitPolicy {
            self.wait
        }
    }

    dafs_proto::conformance_suite!(Shm::new(WaitPolicy::Event));

    mod adaptive {
        use super::*;

        dafs_proto::conformance_suite!(Shm::new(WaitPolicy::Adaptive));
    }

    mod busy {
        use super::*;

        dafs_proto::conformance_suite!(Shm::new(WaitPolicy::Busy));
    }
}

/// Ignored unless asked for: they need an RDMA device, and its IP address in `DAFS_VERBS_ADDRESS`.
#[cfg(feature = "verbs")]
mod verbs {
    use std::net::SocketAddr;
    use std::sync::Arc;

    use dafs_proto::transport::conformance::Fixture;
    use dafs_proto::transport::verbs::VerbsDomain;
    use dafs_proto::transport::{Address, Domain};

    struct Verbs;

    impl Fixture for Verbs {
        fn domain(&self) -> Arc<dyn Domain> {
            Arc::new(VerbsDomain::new())
        }

        fn address(&self) -> Address {
            let ip = std::env::var("DAFS_VERBS_ADDRESS")
                .expect("DAFS_VERBS_ADDRESS: the IP address of an RDMA device");
            Address::Verbs(SocketAddr::new(ip.parse().expect("an IP address"), 0))
        }
    }

    dafs_proto::conformance_suite!(attribute: [ignore = "needs rdma-device"], Verbs);
}
