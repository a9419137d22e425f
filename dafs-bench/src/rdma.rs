//! Which RDMA device is measured.

use std::fs;
use std::net::{IpAddr, Ipv6Addr};
use std::path::Path;

use anyhow::{Context, bail, ensure};

/// Where the kernel shows its RDMA devices.
const DEVICES: &str = "/sys/class/infiniband";

/// The address of the device to measure: `wanted`, else that of the first port that has one. An error says what is missing, and
/// what to do about it.
pub fn device_address(wanted: Option<IpAddr>) -> anyhow::Result<IpAddr> {
    device_address_in(Path::new(DEVICES), wanted)
}

fn device_address_in(devices: &Path, wanted: Option<IpAddr>) -> anyhow::Result<IpAddr> {
    if cfg!(not(feature = "verbs")) {
        bail!(
            "cannot use RDMA: this dafs-bench was built without it; install libibverbs-dev, librdmacm-dev, libclang-dev and pkg-config, \
             and build with --features dafs-bench/verbs,dafs-server/verbs"
        );
    }
    ensure!(
        fs::read_dir(devices).is_ok_and(|mut devices| devices.next().is_some()),
        "this machine has no RDMA device (rdma link shows none); tests/rdma-vm/bench measures in a guest that has one, and \
         `rdma link add rxe0 type rxe netdev NAME` makes one in software where the kernel has the module rdma_rxe"
    );
    match wanted {
        Some(ip) => Ok(ip),
        None => first_address(devices).context(
            "no RDMA device shows an IP address; name that of its network interface with --verbs-address (over InfiniBand, that of \
             the IPoIB interface)",
        ),
    }
}

/// RoCE ports list their interface's addresses as GIDs.
fn first_address(devices: &Path) -> Option<IpAddr> {
    let mut gids: Vec<_> = entries(devices)
        .flat_map(|device| entries(&device.join("ports")).collect::<Vec<_>>())
        .flat_map(|port| entries(&port.join("gids")).collect::<Vec<_>>())
        .collect();
    gids.sort();
    let addresses =
        gids.iter().filter_map(|gid| fs::read_to_string(gid).ok()?.trim().parse::<Ipv6Addr>().ok());
    addresses.filter_map(|gid| gid.to_ipv4_mapped()).map(IpAddr::V4).next()
}

fn entries(directory: &Path) -> impl Iterator<Item = std::path::PathBuf> {
    fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_address_is_the_first_gid_that_is_an_ipv4_address() {
        let devices = tempfile::tempdir().unwrap();
        let gids = devices.path().join("rxe0/ports/1/gids");
        fs::create_dir_all(&gids).unwrap();
        assert_eq!(first_address(devices.path()), None);
        fs::write(gids.join("0"), "fe80:0000:0000:0000:0c4b:e4ff:fe8a:7d11\n").unwrap();
        fs::write(gids.join("1"), "0000:0000:0000:0000:0000:ffff:0a09:0901\n").unwrap();
        fs::write(gids.join("2"), "0000:0000:0000:0000:0000:0000:0000:0000\n").unwrap();
        assert_eq!(first_address(devices.path()), Some("10.9.9.1".parse().unwrap()));
    }

    #[test]
    fn device_address_without_a_device_says_what_to_do() {
        let nowhere = tempfile::tempdir().unwrap();
        for wanted in [None, Some("10.9.9.1".parse().unwrap())] {
            let error = device_address_in(nowhere.path(), wanted).unwrap_err().to_string();
            let what_to_do = if cfg!(feature = "verbs") { "rdma link add" } else { "--features" };
            assert!(error.contains(what_to_do), "{error}");
        }
    }
}
