//! The calibration on every provider: it ends, and its results can be used. `--nocapture` shows them. No test depends on how fast
//! anything is.
#![allow(clippy::unwrap_used, reason = "all of this is test code, helpers included")]

use std::sync::Arc;
use std::time::Duration;

use dafs_proto::transport::{Address, ConnectError, ConnectParams, Domain};
use dafs_proto::wire::Crossovers;
use dafs_server::calibrate::{self, Calibration, Sample};

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

/// In the order of [`calibrate::Samples`].
fn of_each(crossovers: &Crossovers) -> [(&'static str, u32); 4] {
    [
        ("read registered", crossovers.read_registered),
        ("read unregistered", crossovers.read_unregistered),
        ("write registered", crossovers.write_registered),
        ("write unregistered", crossovers.write_unregistered),
    ]
}

/// [PROV-40]
fn assert_usable(calibration: &Calibration) {
    let crossovers = calibration.crossovers;
    println!(
        "{crossovers:?}, {} rounds in {:?}; bytes:inline/direct µs",
        calibration.rounds, calibration.duration
    );
    for ((name, crossover), samples) in of_each(&crossovers).into_iter().zip(&calibration.samples) {
        print(name, samples);
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
    for ((name, from), samples) in of_each(&gather).into_iter().zip(&calibration.gather_samples) {
        print(name, samples);
        let sizes: Vec<u32> = samples.iter().map(|sample| sample.size).collect();
        assert_eq!((sizes.first(), sizes.last()), (Some(&64), Some(&8192)));
        assert!(sizes.contains(&from) || from == u32::MAX, "{from}");
    }
}

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

    /// [LIST-11] 64 pieces, each described in 24 bytes.
    #[test]
    fn calibration_gathers_where_a_message_describes_all_pieces() {
        for (inline_max, is_described) in [(64 * 24 - 1, false), (64 * 24, true)] {
            let params = ConnectParams { recv_payload_max: inline_max, ..ConnectParams::default() };
            let client: Arc<dyn Domain> = Arc::new(TcpDomain::new());
            let measured =
                calibrate::measure(&TcpDomain::new(), &client, &any_port(), &params, calibrate::BUDGET);
            assert_eq!(measured.unwrap().gather.is_some(), is_described, "{inline_max}");
        }
    }

    /// [PROV-42]
    #[test]
    fn calibration_on_an_address_in_use_answers_an_error() {
        let domain = TcpDomain::new();
        let taken = domain.listen(&any_port(), &ConnectParams::default()).unwrap();
        let client: Arc<dyn Domain> = Arc::new(TcpDomain::new());
        let params = ConnectParams::default();
        let result = calibrate::measure(&domain, &client, taken.address(), &params, calibrate::BUDGET);
        assert!(result.unwrap_err().downcast_ref::<ConnectError>().is_some());
    }

    /// [PROV-42]
    #[test]
    fn calibration_with_a_client_of_another_provider_answers_an_error() {
        let client: Arc<dyn Domain> = Arc::new(dafs_proto::transport::shm::ShmDomain::new());
        let params = ConnectParams::default();
        let result = calibrate::measure(&TcpDomain::new(), &client, &any_port(), &params, calibrate::BUDGET);
        assert!(result.is_err());
    }
}

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
