//! What registering costs here, measured.

use std::sync::Arc;
use std::time::Instant;

use dafs_proto::transport::{Access, Domain, HeapMemory, MemoryRef, RegionError};

use super::{RegistrationCost, page_size};

const ROUNDS: usize = 9;
const PAGES: usize = 256;

/// Registers one page and many, several times; some milliseconds where registering is dear.
pub(crate) fn measure(domain: &dyn Domain) -> Result<RegistrationCost, RegionError> {
    let len = PAGES * page_size();
    let memory = HeapMemory::allocate(len).ok_or(RegionError::System {
        what: "allocate memory to measure registration with",
        source: std::io::ErrorKind::OutOfMemory.into(),
    })?;
    let memory = MemoryRef::new(Arc::new(memory));
    // Pages that are not there yet would be counted as registration.
    for page in (0..len).step_by(page_size()) {
        memory.span().write_from(page, &[1]);
    }
    let one = median_ns(domain, &memory, page_size())?;
    let many = median_ns(domain, &memory, len)?;
    let page_ns = ((many - one) / (PAGES - 1) as f64).max(0.0);
    Ok(RegistrationCost { page_ns, call_ns: (one - page_ns).max(1.0) })
}

fn median_ns(domain: &dyn Domain, memory: &MemoryRef, len: usize) -> Result<f64, RegionError> {
    let part = memory.slice(0, len).unwrap_or_else(|| memory.clone());
    let mut times = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        let begin = Instant::now();
        drop(domain.register(part.clone(), Access::REMOTE_READ | Access::REMOTE_WRITE)?);
        times.push(begin.elapsed().as_nanos());
    }
    times.sort_unstable();
    Ok(times[ROUNDS / 2] as f64)
}
