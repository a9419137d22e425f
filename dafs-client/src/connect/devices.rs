//! The RDMA devices of this machine: for `dafs info --devices`, and for the choice of a provider.

use dafs_proto::address::Address;

/// A port of an RDMA device.
#[derive(Clone, Debug, serde::Serialize)]
pub struct RdmaDevice {
    /// Name of the device.
    pub name: String,
    /// Port of the device, from 1.
    pub port: u8,
    /// "InfiniBand" or "Ethernet".
    pub link_layer: &'static str,
    /// State of the port.
    pub state: &'static str,
    /// Segments that one work request gathers or scatters.
    pub segments_max: u32,
    /// Work requests of one queue.
    pub queue_depth_max: u32,
    /// RDMA reads of one connection in flight at once.
    pub reads_max: u8,
    /// Largest message, bytes.
    pub message_size_max: u32,
    /// Connections of all programs together.
    pub connections_max: u32,
    /// Why it cannot be used; `None` when it can.
    pub unusable: Option<String>,
}

/// The RDMA devices of this machine, or why none can be used: what is missing, and what to do about it. Does not block.
#[cfg(feature = "verbs")]
pub fn rdma_devices() -> Result<Vec<RdmaDevice>, String> {
    let missing = "its driver, or the kernel modules ib_uverbs and rdma_ucm, are not loaded (`rdma link` lists the kernel's devices)";
    let devices = dafs_proto::transport::verbs::devices()
        .map_err(|error| format!("the RDMA subsystem does not answer ({error}): {missing}"))?;
    if devices.is_empty() {
        return Err(format!("this machine has no RDMA device, or {missing}"));
    }
    Ok(devices
        .into_iter()
        .map(|device| RdmaDevice {
            name: device.name,
            port: device.port,
            link_layer: device.link_layer,
            state: device.state,
            segments_max: device.limits.sge_max,
            queue_depth_max: device.limits.queue_depth_max,
            reads_max: device.limits.read_initiator_max.min(device.limits.read_responder_max),
            message_size_max: device.limits.message_size_max,
            connections_max: device.limits.connections_max,
            unusable: device.unusable,
        })
        .collect())
}

/// The RDMA devices of this machine, or why none can be used: what is missing, and what to do about it. Does not block.
#[cfg(not(feature = "verbs"))]
pub fn rdma_devices() -> Result<Vec<RdmaDevice>, String> {
    Err("this program was built without RDMA; install libibverbs-dev, librdmacm-dev, libclang-dev and pkg-config, and build it with \
         --features verbs"
        .to_owned())
}

/// The RDMA address of the first server that a device of this machine has a route to, and what that device is; else why there is
/// none, where a build with RDMA can tell. Blocks for a second at most.
#[cfg(feature = "verbs")]
pub(crate) fn with_route(addresses: &[Address]) -> Result<(Address, &'static str), Option<String>> {
    use std::time::{Duration, Instant};

    let devices = rdma_devices().map_err(Some)?;
    if let Some(first) = devices.first().filter(|_| devices.iter().all(|device| device.unusable.is_some())) {
        let why = first.unusable.as_deref().unwrap_or_default();
        return Err(Some(format!("the device {} cannot be used: {why}", first.name)));
    }
    let deadline = Instant::now() + Duration::from_secs(1);
    let mut why = None;
    for address in addresses {
        let Address::Tcp(ip) = address else { continue };
        let left = deadline.saturating_duration_since(Instant::now());
        match dafs_proto::transport::verbs::check_route(*ip, left) {
            Ok(()) => return Ok((Address::Verbs(*ip), "an RDMA device of this machine")),
            Err(error) => why = Some(error.to_string()),
        }
    }
    Err(why)
}

#[cfg(not(feature = "verbs"))]
pub(crate) fn with_route(_: &[Address]) -> Result<(Address, &'static str), Option<String>> {
    Err(None)
}
