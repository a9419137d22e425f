//! The calibration on every provider: it ends, and its results can be used. `--nocapture` shows them. No test depends on how fast
//! anything is.
#![allow(clippy::unwrap_used, reason = "all of this is test code, helpers included")]

use std::sync::Arc;
use std::time::Duration;

use dafs_proto::transport::calibrate::{self, CalibrateError, Calibration, Sample};
use dafs_proto::transport::{Address, ConnectParams, Domain};

const INLINE_MAX: u32 = 16 * 1024;

fn measure(server: &dyn Domain, client: Arc<dyn Domain>, address: &Address) -> Calibration {
    measure_for(server, client, address, calibrate::BUDGET)
}

fn measure_for(
    server: &dyn Domain,
    client: Arc<dyn Domain>,
    address: &Address,
    budget: Duration,
) -> Calibration {
    let params = ConnectParams { recv_payload_max: INLINE_MAX, ..ConnectParams::default() };
    calibrate::measure(server, &client, address, &params, budget).unwrap()
}

fn print(name: &str, samples: &[Sample]) {
    print!("  {name:20}");
    for sample in samples {
        print!(
            " {}:{:.1}/{:.1}",
            sample.size,
            sample.inline.as_secs_f64() * 1e6,
            sample.direct.as_secs_f64() * 1e6
        );
    }
    println!();
}

/// [PROV-40]
fn assert_usable(calibration: &Calibration) {
    let crossovers = calibration.crossovers;
    println!(
        "{crossovers:?}, {} rounds in {:?}; bytes:inline/direct µs",
        calibration.rounds, calibration.duration
    );
    print("read registered", &calibration.read_registered);
    print("read unregistered", &calibration.read_unregistered);
    print("write registered", &calibration.write_registered);
    print("write unregistered", &calibration.write_unregistered);
    for (crossover, samples) in [
        (crossovers.read_registered_bytes, &calibration.read_registered),
        (crossovers.read_unregistered_bytes, &calibration.read_unregistered),
        (crossovers.write_registered_bytes, &calibration.write_registered),
        (crossovers.write_unregistered_bytes, &calibration.write_unregistered),
    ] {
        let sizes: Vec<u32> = samples.iter().map(|sample| sample.size).collect();
        assert_eq!(sizes, [512, 1024, 2048, 4096, 8192, INLINE_MAX]);
        assert!(sizes.contains(&crossover) || crossover == INLINE_MAX + 1, "{crossover}");
        assert!(
            samples.iter().all(|sample| sample.inline > Duration::ZERO && sample.direct > Duration::ZERO)
        );
    }
    assert!(calibration.rounds >= 5);
    // [LIST-11]
    let gather = calibration.gather.expect("messages of 16 KiB describe 64 segments");
    println!("gather from {gather:?}; bytes:pack/gather µs");
    for (from, samples, name) in [
        (gather.read_registered_bytes, &calibration.gather_samples[0], "read registered"),
        (gather.read_unregistered_bytes, &calibration.gather_samples[1], "read unregistered"),
        (gather.write_registered_bytes, &calibration.gather_samples[2], "write registered"),
        (gather.write_unregistered_bytes, &calibration.gather_samples[3], "write unregistered"),
    ] {
        print(name, samples);
        let sizes: Vec<u32> = samples.iter().map(|sample| sample.size).collect();
        assert!(sizes.contains(&from) || from == u32::MAX, "{from}");
    }
}

#[cfg(feature = "tcp")]
mod tcp {
    use super::*;
    use dafs_proto::transport::tcp::TcpDomain;

    fn any_port() -> Address {
        Address::Tcp(([127, 0, 0, 1], 0).into())
    }

    #[test]
    fn calibration_gives_usable_crossovers() {
        assert_usable(&measure(&TcpDomain::new(), Arc::new(TcpDomain::new()), &any_port()));
    }

    /// [PROV-42]
    #[test]
    fn calibration_on_an_address_in_use_answers_an_error() {
        let domain = TcpDomain::new();
        let taken = domain.listen(&any_port(), &ConnectParams::default()).unwrap();
        let client: Arc<dyn Domain> = Arc::new(TcpDomain::new());
        let params = ConnectParams::default();
        let result = calibrate::measure(&domain, &client, taken.address(), &params, calibrate::BUDGET);
        assert!(matches!(result, Err(CalibrateError::Connect(_))));
    }

    /// [PROV-42]
    #[test]
    fn calibration_with_a_client_of_another_provider_answers_an_error() {
        let client: Arc<dyn Domain> = Arc::new(dafs_proto::transport::shm::ShmDomain::new());
        let params = ConnectParams::default();
        let result = calibrate::measure(&TcpDomain::new(), &client, &any_port(), &params, calibrate::BUDGET);
        assert!(matches!(result, Err(CalibrateError::Connect(_) | CalibrateError::Unexpected(_))));
    }
}

#[cfg(feature = "shm")]
mod shm {
    use super::*;
    use dafs_proto::transport::shm::ShmDomain;

    #[test]
    fn calibration_gives_usable_crossovers() {
        let directory = tempfile::tempdir().unwrap();
        let address = Address::Shm(directory.path().join("socket"));
        assert_usable(&measure(&ShmDomain::new(), Arc::new(ShmDomain::new()), &address));
        assert!(std::fs::read_dir(directory.path()).unwrap().next().is_none(), "nothing is left behind");
    }
}

/// Ignored unless asked for: they need an RDMA device, and its IP address in `DAFS_VERBS_ADDRESS`.
#[cfg(feature = "verbs")]
mod verbs {
    use super::*;
    use dafs_proto::transport::verbs::VerbsDomain;

    #[test]
    #[ignore = "needs rdma-device"]
    fn calibration_gives_usable_crossovers() {
        let ip = std::env::var("DAFS_VERBS_ADDRESS")
            .expect("DAFS_VERBS_ADDRESS: the IP address of an RDMA device");
        let address = Address::Verbs(std::net::SocketAddr::new(ip.parse().expect("an IP address"), 0));
        let client: Arc<dyn Domain> = Arc::new(VerbsDomain::new());
        // An emulated device, on a machine that does other things as well, takes its time.
        let budget = 60 * calibrate::BUDGET;
        assert_usable(&measure_for(&VerbsDomain::new(), client, &address, budget));
    }
}

mod sim {
    use super::*;
    use dafs_proto::transport::sim::{FaultPlan, NodeId, SimNet};

    #[test]
    fn calibration_is_computed_and_uses_both_methods() {
        let net = SimNet::new(1, FaultPlan::calm());
        let calibration = measure(&net.domain(NodeId(1)), Arc::new(net.domain(NodeId(2))), &Address::Sim(1));
        let crossovers = calibration.crossovers;
        for crossover in [crossovers.read_registered_bytes, crossovers.write_unregistered_bytes] {
            assert!((1..=INLINE_MAX).contains(&crossover));
        }
        assert_eq!(net.now(), Duration::ZERO, "virtual time has not moved");
    }
}
