//! Bare ends of a connection, for benchmarks: what a device does with no protocol on it.
//!
//! An end sends and receives messages of one size and writes and reads the peer's memory, as the programs of perftest do: no headers, no
//! credits, nothing copied. There is no protection: each end tells the other the address of its whole buffer.
//!
//! All calls block the thread; waiting is spinning on the completion queue, or sleeping on its channel.
#![allow(unsafe_code, reason = "makes queue pairs and posts work requests")]

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use byteorder::{ByteOrder, LittleEndian};

use super::super::{Access, MemoryRef};
use super::buffers::RECEIVE;
use super::cm::{CmEvent, CmEventKind, CmId, EventChannel, QueueSize, poll_readable};
use super::connect::{device_of, set_rnr_timer};
use super::device::{Device, MemoryRegion, Rights};
use super::domain::{Refusal, await_event, explain_missing, private_data, resolve};
use super::handshake::HELLO_SIZE;
use super::memory::{VerbsDomainParts, registered_buffer};
use super::queue::{Action, CompletionQueue, QueuePair, RecvList, Segment, SendList};
use super::status::{SUCCESS, explain};
use super::{INLINE_WANTED, READS_MAX};

/// How long the other end may take to connect.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(5);

/// How long an end sleeps before it looks whether it shall stop.
const SLEEP_MAX: Duration = Duration::from_millis(50);

/// Requests without a completion of their own, where nobody waits for them.
const UNSIGNALED_MAX: u32 = 32;

/// What an end is made for.
#[derive(Clone, Copy, Debug)]
pub struct RawSetup {
    /// Largest message, bytes.
    pub message_size_max: usize,
    /// Size of the buffer that data is written to and read from, bytes.
    pub data_size: usize,
    /// Messages, and RDMA operations, on their way at once.
    pub depth: u32,
    /// Sleep where there is nothing to do, rather than spin.
    pub sleeps: bool,
}

/// Waits for one connection at a time.
pub struct RawListener {
    id: CmId,
    shared: Arc<VerbsDomainParts>,
    ip: SocketAddr,
}

impl RawListener {
    /// Listens on an address of an RDMA device. Port 0 takes any.
    pub fn bind(at: SocketAddr) -> io::Result<Self> {
        let listen = || {
            let id = CmId::new(&EventChannel::new()?)?;
            id.bind(at)?;
            id.listen()?;
            Ok(id)
        };
        Ok(Self { id: listen().map_err(explain_missing)?, shared: Arc::default(), ip: at })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        SocketAddr::new(self.ip.ip(), self.id.source_port())
    }

    /// The next connection; an error when none comes within seconds.
    pub fn accept(&self, setup: &RawSetup) -> io::Result<RawEnd> {
        let deadline = Instant::now() + CONNECT_TIME_MAX;
        let mut request =
            await_event(&self.id, CmEventKind::ConnectRequest, deadline).map_err(Refusal::into_io)?;
        let id = request.request.take().ok_or(io::ErrorKind::ConnectionAborted)?;
        let device = device_of(&id, &self.shared)?;
        let mut end = RawEnd::new(id, device, setup)?;
        end.remote = remote_of(&request)?;
        end.id.accept(&end.about(), (READS_MAX, READS_MAX))?;
        await_event(&self.id, CmEventKind::Established, deadline).map_err(Refusal::into_io)?;
        set_rnr_timer(end.qp);
        Ok(end)
    }
}

/// One end. Fields are dropped in order: the queue pair before the memory that the device may touch.
pub struct RawEnd {
    id: CmId,
    qp: QueuePair,
    cq: CompletionQueue,
    messages: (MemoryRef, MemoryRegion),
    data: (MemoryRef, MemoryRegion),
    setup: RawSetup,
    sends: SendList,
    receives: RecvList,
    remote: Remote,
    inline_max: usize,
    unsignaled: u32,
    arrived: u32,
    done: u32,
}

/// The other end's data.
#[derive(Clone, Copy, Default)]
struct Remote {
    address: u64,
    key: u32,
    size: u32,
}

impl RawEnd {
    /// Connects to a [`RawListener`].
    pub fn connect(to: SocketAddr, setup: &RawSetup) -> io::Result<Self> {
        let deadline = Instant::now() + CONNECT_TIME_MAX;
        let id = resolve(to, deadline).map_err(|refusal| explain_missing(refusal.into_io()))?;
        let device = device_of(&id, &VerbsDomainParts::default())?;
        let mut end = Self::new(id, device, setup)?;
        end.id.connect(&end.about(), (READS_MAX, READS_MAX))?;
        let established =
            await_event(&end.id, CmEventKind::Established, deadline).map_err(Refusal::into_io)?;
        end.remote = remote_of(&established)?;
        set_rnr_timer(end.qp);
        Ok(end)
    }

    fn new(mut id: CmId, device: Arc<Device>, setup: &RawSetup) -> io::Result<Self> {
        let depth = setup.depth.clamp(1, 1024);
        let (data, messages) = buffers(&device, setup)?;
        let cq = CompletionQueue::new(&device, 4 * (depth + UNSIGNALED_MAX))?;
        let requests = depth + 2 * UNSIGNALED_MAX;
        let size = QueueSize { requests, receives: depth, segments: 1, inline: INLINE_WANTED };
        // SAFETY: of the same device; fields are dropped in an order that keeps both alive.
        let (qp, inline_max) = unsafe { id.create_queues(&device, &cq, &size)? };
        let mut end = Self {
            id,
            qp,
            cq,
            messages,
            data,
            setup: RawSetup { depth, ..*setup },
            sends: SendList::new(),
            receives: RecvList::new(),
            remote: Remote::default(),
            inline_max: inline_max as usize,
            unsignaled: 0,
            arrived: 0,
            done: 0,
        };
        (0..depth).for_each(|_| end.give_back());
        end.post_receives()?;
        Ok(end)
    }

    /// Sends a message of `len` bytes of whatever is in the buffer. Returns when it is queued at the device.
    #[inline]
    pub fn send(&mut self, len: usize) -> io::Result<()> {
        self.unsignaled += 1;
        let signaled = self.unsignaled >= UNSIGNALED_MAX;
        if signaled {
            self.unsignaled = 0;
        }
        let segment = self.segment(&self.messages, len.min(self.setup.message_size_max));
        self.sends.push(1, Action::Send, &[segment], len <= self.inline_max, signaled);
        self.post()
    }

    /// Waits for a message; `false` when none had come by the time that `stop` was set.
    #[inline]
    pub fn receive(&mut self, stop: &AtomicBool) -> io::Result<bool> {
        while self.arrived == 0 {
            if self.wait()? == 0 && stop.load(Ordering::Relaxed) {
                return Ok(false);
            }
        }
        self.arrived -= 1;
        self.give_back();
        self.post_receives()?;
        Ok(true)
    }

    /// Writes `len` bytes into the peer's data, from the same place of this end's.
    #[inline]
    pub fn write(&mut self, offset: usize, len: usize) -> io::Result<()> {
        self.rdma(offset, len, |address, key| Action::Write { address, key, immediate: None })
    }

    /// Reads `len` bytes of the peer's data into the same place of this end's.
    #[inline]
    pub fn read(&mut self, offset: usize, len: usize) -> io::Result<()> {
        self.rdma(offset, len, |address, key| Action::Read { address, key })
    }

    /// Waits until writes or reads are done; how many.
    #[inline]
    pub fn wait_done(&mut self) -> io::Result<u32> {
        while self.done == 0 {
            self.wait()?;
        }
        Ok(std::mem::take(&mut self.done))
    }

    fn rdma(&mut self, offset: usize, len: usize, action: impl Fn(u64, u32) -> Action) -> io::Result<()> {
        if offset + len > self.setup.data_size || offset + len > self.remote.size as usize {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "beyond the data of an end"));
        }
        let mut segment = self.segment(&self.data, len);
        segment.address += offset as u64;
        let action = action(self.remote.address + offset as u64, self.remote.key);
        self.sends.push(0, action, &[segment], false, true);
        self.post()
    }

    fn post(&mut self) -> io::Result<()> {
        // SAFETY: the queue pair is live, and the buffers outlive it.
        unsafe { self.sends.post(self.qp) }
    }

    fn give_back(&mut self) {
        let segment = self.segment(&self.messages, self.setup.message_size_max);
        self.receives.push(RECEIVE, segment);
    }

    fn post_receives(&mut self) -> io::Result<()> {
        // SAFETY: as in `post`.
        unsafe { self.receives.post(self.qp) }
    }

    fn segment(&self, (memory, region): &(MemoryRef, MemoryRegion), len: usize) -> Segment {
        let address = memory.span().as_ptr() as u64;
        Segment { address, len: u32::try_from(len).unwrap_or(u32::MAX), key: region.local_key() }
    }

    /// Takes what is done; waits where nothing is.
    #[inline]
    fn wait(&mut self) -> io::Result<usize> {
        let count = self.poll()?;
        if count > 0 || !self.setup.sleeps {
            return Ok(count);
        }
        self.cq.arm(false)?;
        let count = self.poll()?;
        if count == 0 && poll_readable([self.cq.fd()], Some(SLEEP_MAX))? == [true] {
            self.cq.take_event();
        }
        Ok(count)
    }

    #[inline]
    fn poll(&mut self) -> io::Result<usize> {
        let Self { cq, arrived, done, .. } = self;
        let mut failure = None;
        let count = cq.poll(|one| match one.id {
            _ if one.status != SUCCESS => failure = Some(explain(one.status, one.vendor_code, None)),
            RECEIVE => *arrived += 1,
            0 => *done += 1,
            _ => {}
        })?;
        match failure {
            Some(failure) => Err(io::Error::other(failure)),
            None => Ok(count),
        }
    }

    /// What the other end is told.
    fn about(&self) -> [u8; HELLO_SIZE] {
        let mut bytes = [0; HELLO_SIZE];
        LittleEndian::write_u64(&mut bytes, self.data.0.span().as_ptr() as u64);
        LittleEndian::write_u32(&mut bytes[8..], self.data.1.remote_key());
        LittleEndian::write_u32(&mut bytes[12..], u32::try_from(self.setup.data_size).unwrap_or(u32::MAX));
        bytes
    }
}

impl Drop for RawEnd {
    fn drop(&mut self) {
        self.id.disconnect();
    }
}

type Buffer = (MemoryRef, MemoryRegion);

/// The data, which the peer reaches, and one buffer for all messages: nobody looks at what is in them.
fn buffers(device: &Arc<Device>, setup: &RawSetup) -> io::Result<(Buffer, Buffer)> {
    let rights = Rights::Remote(Access::REMOTE_READ | Access::REMOTE_WRITE);
    let data = registered_buffer(device, setup.data_size.max(1), rights)?;
    let messages = registered_buffer(device, setup.message_size_max.max(1), Rights::Destination)?;
    Ok((data, messages))
}

fn remote_of(event: &CmEvent) -> io::Result<Remote> {
    let bytes = private_data(event);
    if bytes.len() < 16 {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the other end is no benchmark"));
    }
    Ok(Remote {
        address: LittleEndian::read_u64(bytes),
        key: LittleEndian::read_u32(&bytes[8..]),
        size: LittleEndian::read_u32(&bytes[12..]),
    })
}
