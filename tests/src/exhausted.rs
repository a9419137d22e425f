//! A domain that lets little or nothing be registered, as one beyond its limit of locked memory.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dafs_client::{Config, Session, SystemClock};
use dafs_proto::transport::{
    Access, Address, ConnectError, ConnectParams, Domain, Endpoint, Listener, Memory, MemoryRef, Provider,
    Region, RegionError,
};

use crate::harness::Harness;
use crate::raw::domain;

/// What is still registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Registers {
    /// Nothing.
    Nothing,
    /// What the domain itself allocated, in pieces of at most so many bytes; no ordinary memory.
    Allocated(usize),
}

/// The domain.
pub struct Exhausted {
    domain: Arc<dyn Domain>,
    registers: Registers,
    /// Where what was allocated lies.
    allocated: Mutex<Vec<usize>>,
}

/// A session whose memory can be registered so far.
pub fn connect_exhausted(harness: &Harness, registers: Registers, config: &Config) -> Session {
    let exhausted = Exhausted { domain: domain(harness.address()), registers, allocated: Mutex::default() };
    let (address, config) = (harness.address().clone(), harness.client_config(config));
    let clock = Arc::new(SystemClock::default());
    Session::connect_with(Arc::new(exhausted), address, &config, clock).expect("the session opens")
}

impl Domain for Exhausted {
    fn provider(&self) -> Provider {
        self.domain.provider()
    }

    fn pins_pages(&self) -> bool {
        self.domain.pins_pages()
    }

    fn allocate(&self, len: usize) -> Result<Arc<dyn Memory>, RegionError> {
        let memory = self.domain.allocate(len)?;
        let mut allocated = self.allocated.lock().unwrap_or_else(PoisonError::into_inner);
        allocated.push(memory.span().as_ptr() as usize);
        Ok(memory)
    }

    fn register(&self, memory: MemoryRef, access: Access) -> Result<Region, RegionError> {
        let allocated = self.allocated.lock().unwrap_or_else(PoisonError::into_inner);
        let is_allocated = allocated.contains(&(memory.span().as_ptr() as usize));
        drop(allocated);
        match self.registers {
            Registers::Allocated(max) if is_allocated && memory.len() <= max => {
                self.domain.register(memory, access)
            }
            _ => {
                let source = std::io::ErrorKind::OutOfMemory.into();
                Err(RegionError::System { what: "register memory", source })
            }
        }
    }

    fn connect(
        &self,
        address: &Address,
        params: &ConnectParams,
        timeout: Duration,
    ) -> Result<Box<dyn Endpoint>, ConnectError> {
        self.domain.connect(address, params, timeout)
    }

    fn listen(&self, address: &Address, params: &ConnectParams) -> Result<Box<dyn Listener>, ConnectError> {
        self.domain.listen(address, params)
    }
}
