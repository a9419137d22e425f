//! libnfs, loaded at run time: building needs no package, and running says which one is missing.
//!
//! Covers the versions whose `nfs_pread` takes offset, count, buffer (sonames 13 and 14); version 6 changed the order.
#![allow(unsafe_code, reason = "calls into a C library loaded at run time")]

use std::cell::{Cell, RefCell, UnsafeCell};
use std::collections::VecDeque;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::rc::Rc;

use anyhow::{Context, anyhow, bail, ensure};
use libloading::Library;

use crate::record::{NameOp, Op};

/// Sonames with the signatures below, in order of preference.
const SONAMES: [&str; 2] = ["libnfs.so.13", "libnfs.so.14"];

type Callback = extern "C" fn(c_int, *mut c_void, *mut c_void, *mut c_void);

/// The functions used, of one loaded library.
struct Api {
    nfs_init_context: unsafe extern "C" fn() -> *mut c_void,
    nfs_destroy_context: unsafe extern "C" fn(*mut c_void),
    nfs_get_error: unsafe extern "C" fn(*mut c_void) -> *const c_char,
    nfs_parse_url_dir: unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void,
    nfs_destroy_url: unsafe extern "C" fn(*mut c_void),
    nfs_mount: unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char) -> c_int,
    nfs_open: unsafe extern "C" fn(*mut c_void, *const c_char, c_int, *mut *mut c_void) -> c_int,
    nfs_pread: unsafe extern "C" fn(*mut c_void, *mut c_void, u64, u64, *mut c_void) -> c_int,
    nfs_pwrite: unsafe extern "C" fn(*mut c_void, *mut c_void, u64, u64, *const c_void) -> c_int,
    nfs_pread_async: unsafe extern "C" fn(*mut c_void, *mut c_void, u64, u64, Callback, *mut c_void) -> c_int,
    nfs_pwrite_async: unsafe extern "C" fn(
        *mut c_void,
        *mut c_void,
        u64,
        u64,
        *const c_void,
        Callback,
        *mut c_void,
    ) -> c_int,
    nfs_creat: unsafe extern "C" fn(*mut c_void, *const c_char, c_int, *mut *mut c_void) -> c_int,
    nfs_close: unsafe extern "C" fn(*mut c_void, *mut c_void) -> c_int,
    nfs_stat64: unsafe extern "C" fn(*mut c_void, *const c_char, *mut c_void) -> c_int,
    nfs_unlink: unsafe extern "C" fn(*mut c_void, *const c_char) -> c_int,
    nfs_rename: unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char) -> c_int,
    nfs_mkdir: unsafe extern "C" fn(*mut c_void, *const c_char) -> c_int,
    nfs_rmdir: unsafe extern "C" fn(*mut c_void, *const c_char) -> c_int,
    nfs_set_dircache: unsafe extern "C" fn(*mut c_void, c_int),
    nfs_opendir: unsafe extern "C" fn(*mut c_void, *const c_char, *mut *mut c_void) -> c_int,
    nfs_readdir: unsafe extern "C" fn(*mut c_void, *mut c_void) -> *mut Entry,
    nfs_closedir: unsafe extern "C" fn(*mut c_void, *mut c_void),
    nfs_get_fd: unsafe extern "C" fn(*mut c_void) -> c_int,
    nfs_which_events: unsafe extern "C" fn(*mut c_void) -> c_int,
    nfs_service: unsafe extern "C" fn(*mut c_void, c_int) -> c_int,
    // Last, so that the functions above never outlive it.
    _library: Library,
}

impl Api {
    fn load() -> anyhow::Result<Self> {
        let mut tried = Vec::new();
        for name in SONAMES {
            // SAFETY: libnfs runs no code of consequence when loaded.
            match unsafe { Library::new(name) } {
                Ok(library) => {
                    return Self::bind(library).with_context(|| format!("{name} lacks a function"));
                }
                Err(error) => tried.push(error.to_string()),
            }
        }
        bail!("cannot load libnfs: {}; install it (Debian: apt-get install libnfs13)", tried.join(", "))
    }

    fn bind(library: Library) -> Result<Self, libloading::Error> {
        macro_rules! symbol {
            ($name:literal) => {
                // SAFETY: the type of the field is the function's in the header of these sonames.
                *unsafe { library.get($name) }?
            };
        }
        Ok(Self {
            nfs_init_context: symbol!(b"nfs_init_context\0"),
            nfs_destroy_context: symbol!(b"nfs_destroy_context\0"),
            nfs_get_error: symbol!(b"nfs_get_error\0"),
            nfs_parse_url_dir: symbol!(b"nfs_parse_url_dir\0"),
            nfs_destroy_url: symbol!(b"nfs_destroy_url\0"),
            nfs_mount: symbol!(b"nfs_mount\0"),
            nfs_open: symbol!(b"nfs_open\0"),
            nfs_pread: symbol!(b"nfs_pread\0"),
            nfs_pwrite: symbol!(b"nfs_pwrite\0"),
            nfs_pread_async: symbol!(b"nfs_pread_async\0"),
            nfs_pwrite_async: symbol!(b"nfs_pwrite_async\0"),
            nfs_creat: symbol!(b"nfs_creat\0"),
            nfs_close: symbol!(b"nfs_close\0"),
            nfs_stat64: symbol!(b"nfs_stat64\0"),
            nfs_unlink: symbol!(b"nfs_unlink\0"),
            nfs_rename: symbol!(b"nfs_rename\0"),
            nfs_mkdir: symbol!(b"nfs_mkdir\0"),
            nfs_rmdir: symbol!(b"nfs_rmdir\0"),
            nfs_set_dircache: symbol!(b"nfs_set_dircache\0"),
            nfs_opendir: symbol!(b"nfs_opendir\0"),
            nfs_readdir: symbol!(b"nfs_readdir\0"),
            nfs_closedir: symbol!(b"nfs_closedir\0"),
            nfs_get_fd: symbol!(b"nfs_get_fd\0"),
            nfs_which_events: symbol!(b"nfs_which_events\0"),
            nfs_service: symbol!(b"nfs_service\0"),
            _library: library,
        })
    }
}

/// The beginning of a `struct nfsdirent`: more attributes follow.
#[repr(C)]
struct Entry {
    next: *mut Self,
    name: *const c_char,
    inode: u64,
    kind: u32,
    mode: u32,
}

/// Checks that the library can be loaded, before servers are started for it.
pub(crate) fn available() -> anyhow::Result<()> {
    Api::load().map(drop)
}

/// Where a file is.
#[derive(Debug, Clone)]
pub(crate) struct NfsFile {
    /// Address of the server.
    pub(crate) host: String,
    /// Port of its NFS service.
    pub(crate) nfs_port: u16,
    /// Port of its MOUNT service.
    pub(crate) mount_port: u16,
    /// The export, with a leading slash.
    pub(crate) export: String,
    /// The file, with a leading slash.
    pub(crate) file: String,
}

/// One open file over NFS version 3. Used by one thread at a time.
pub(crate) struct File {
    api: Api,
    nfs: *mut c_void,
    handle: *mut c_void,
    // They outlive the context, which completes what is left in flight when destroyed.
    #[expect(clippy::vec_box, reason = "libnfs keeps the addresses of slots")]
    slots: Vec<Box<Slot>>,
    completed: Rc<RefCell<VecDeque<usize>>>,
}

// SAFETY: a libnfs context belongs to no particular thread, only to one at a time, which `&mut self` ensures; the
// `Rc`s all live in the one `File` and move with it.
unsafe impl Send for File {}

/// One operation in flight and its buffer.
struct Slot {
    index: usize,
    read: Cell<bool>,
    in_flight: Cell<bool>,
    result: Cell<c_int>,
    // Borrowed by the callback while `in_flight`, by `File` otherwise.
    buffer: UnsafeCell<Vec<u8>>,
    completed: Rc<RefCell<VecDeque<usize>>>,
}

impl File {
    /// Connects and opens the file for reading and writing.
    pub(crate) fn open(place: &NfsFile) -> anyhow::Result<Self> {
        let api = Api::load()?;
        // SAFETY: no preconditions.
        let nfs = unsafe { (api.nfs_init_context)() };
        ensure!(!nfs.is_null(), "libnfs has no memory for a context");
        let handle = std::ptr::null_mut();
        // SAFETY: the context is live. Each listing is to ask the server.
        unsafe { (api.nfs_set_dircache)(nfs, 0) };
        // From here on dropping `file` destroys the context.
        let mut file = Self { api, nfs, handle, slots: Vec::new(), completed: Rc::default() };
        let url = CString::new(format!(
            "nfs://{}{}?version=3&nfsport={}&mountport={}&autoreconnect=0",
            place.host, place.export, place.nfs_port, place.mount_port
        ))?;
        // SAFETY: the context is live and the string null-terminated; parsing sets the context's ports.
        let parsed = unsafe { (file.api.nfs_parse_url_dir)(nfs, url.as_ptr()) };
        ensure!(!parsed.is_null(), "libnfs does not understand {url:?}: {}", file.error());
        // SAFETY: `parsed` came from the call above and is not used again.
        unsafe { (file.api.nfs_destroy_url)(parsed) };
        let (host, export) = (CString::new(place.host.as_str())?, CString::new(place.export.as_str())?);
        // SAFETY: context and strings are live.
        let mounted = unsafe { (file.api.nfs_mount)(nfs, host.as_ptr(), export.as_ptr()) };
        ensure!(mounted == 0, "cannot mount {}: {}", place.export, file.error());
        let path = CString::new(place.file.as_str())?;
        // SAFETY: context and string are live; `handle` is written on success only.
        let opened = unsafe { (file.api.nfs_open)(nfs, path.as_ptr(), libc::O_RDWR, &raw mut file.handle) };
        ensure!(opened == 0, "cannot open {}: {}", place.file, file.error());
        Ok(file)
    }

    /// Gives every one of `depth` slots a buffer of `bytes` bytes of 0x5a, not what was read before: others check what is in the file. No
    /// operation may be in flight.
    pub(crate) fn prepare(&mut self, depth: usize, bytes: usize) -> anyhow::Result<()> {
        ensure!(self.slots.iter().all(|slot| !slot.in_flight.get()), "operations are left from a failed run");
        while self.slots.len() < depth {
            self.slots.push(Box::new(Slot {
                index: self.slots.len(),
                read: Cell::new(false),
                in_flight: Cell::new(false),
                result: Cell::new(0),
                buffer: UnsafeCell::default(),
                completed: Rc::clone(&self.completed),
            }));
        }
        for slot in &mut self.slots {
            let buffer = slot.buffer.get_mut();
            buffer.clear();
            buffer.resize(bytes, 0x5a);
        }
        Ok(())
    }

    /// Transfers slot 0's whole buffer, and waits.
    pub(crate) fn transfer(&mut self, op: Op, offset: u64) -> anyhow::Result<()> {
        let buffer = self.slots[0].buffer.get_mut();
        let (count, wanted) = (buffer.len() as u64, buffer.len());
        let at = buffer.as_mut_ptr().cast::<c_void>();
        // SAFETY: context and handle are live; `at` covers `count` bytes until the call returns.
        let moved = unsafe {
            match op {
                Op::Write => (self.api.nfs_pwrite)(self.nfs, self.handle, offset, count, at),
                Op::Read | Op::Ping | Op::Copy => {
                    (self.api.nfs_pread)(self.nfs, self.handle, offset, count, at)
                }
            }
        };
        self.check(moved, wanted)
    }

    /// Makes, looks at or removes the file `name` in the export's root, and waits.
    pub(crate) fn name(&mut self, op: NameOp, name: &str) -> anyhow::Result<()> {
        let path = CString::new(format!("/{name}"))?;
        // SAFETY: context and path are live; `made` and `opened` are written on success only, and closed once; a `struct nfs_stat_64` has
        // 17 numbers of 64 bits at most, for which there is room.
        let outcome = unsafe {
            match op {
                NameOp::Create => {
                    let mut made = std::ptr::null_mut();
                    match (self.api.nfs_creat)(self.nfs, path.as_ptr(), 0o644, &raw mut made) {
                        0 => (self.api.nfs_close)(self.nfs, made),
                        error => error,
                    }
                }
                NameOp::Open => {
                    let mut opened = std::ptr::null_mut();
                    match (self.api.nfs_open)(self.nfs, path.as_ptr(), libc::O_RDONLY, &raw mut opened) {
                        0 => (self.api.nfs_close)(self.nfs, opened),
                        error => error,
                    }
                }
                NameOp::Stat => {
                    let mut attributes = [0u64; 64];
                    (self.api.nfs_stat64)(self.nfs, path.as_ptr(), attributes.as_mut_ptr().cast())
                }
                NameOp::Remove => (self.api.nfs_unlink)(self.nfs, path.as_ptr()),
                NameOp::Rename | NameOp::List => bail!("no {} of a single name", op.name()),
            }
        };
        ensure!(outcome == 0, "cannot {} {name}: {}", op.name(), self.error());
        Ok(())
    }

    /// Gives the file `from` in the export's root the name `to`, and waits.
    pub(crate) fn rename(&mut self, from: &str, to: &str) -> anyhow::Result<()> {
        let (old, new) = (CString::new(format!("/{from}"))?, CString::new(format!("/{to}"))?);
        // SAFETY: context and paths are live.
        let outcome = unsafe { (self.api.nfs_rename)(self.nfs, old.as_ptr(), new.as_ptr()) };
        ensure!(outcome == 0, "cannot rename {from}: {}", self.error());
        Ok(())
    }

    /// Makes the directory `name` in the export's root, or removes it, and waits.
    pub(crate) fn directory(&mut self, name: &str, make: bool) -> anyhow::Result<()> {
        let path = CString::new(format!("/{name}"))?;
        let call = if make { self.api.nfs_mkdir } else { self.api.nfs_rmdir };
        // SAFETY: context and path are live.
        let outcome = unsafe { call(self.nfs, path.as_ptr()) };
        ensure!(outcome == 0, "cannot make or remove the directory {name}: {}", self.error());
        Ok(())
    }

    /// Files in the directory `name` whose attributes the server told with their names.
    pub(crate) fn list(&mut self, name: &str) -> anyhow::Result<usize> {
        let path = CString::new(format!("/{name}"))?;
        let mut directory = std::ptr::null_mut();
        // SAFETY: context and path are live; `directory` is written on success only.
        let outcome = unsafe { (self.api.nfs_opendir)(self.nfs, path.as_ptr(), &raw mut directory) };
        ensure!(outcome == 0, "cannot list {name}: {}", self.error());
        let mut count = 0;
        // SAFETY: context and directory are live; an entry lives until the directory is closed.
        while let Some(entry) = unsafe { (self.api.nfs_readdir)(self.nfs, directory).as_ref() } {
            count += usize::from(entry.mode & libc::S_IFMT == libc::S_IFREG);
        }
        // SAFETY: context and directory are live; the latter is not used again.
        unsafe { (self.api.nfs_closedir)(self.nfs, directory) };
        Ok(count)
    }

    /// Starts to transfer the whole buffer of the slot `index`, which must be idle.
    pub(crate) fn submit(&mut self, index: usize, op: Op, offset: u64) -> anyhow::Result<()> {
        let slot = &self.slots[index];
        ensure!(!slot.in_flight.get(), "slot {index} is in flight");
        // SAFETY: the slot is idle, so nobody else refers to its buffer.
        let buffer = unsafe { &mut *slot.buffer.get() };
        let (at, count) = (buffer.as_mut_ptr().cast::<c_void>(), buffer.len() as u64);
        let private = std::ptr::from_ref::<Slot>(slot).cast_mut().cast::<c_void>();
        slot.read.set(op != Op::Write);
        // SAFETY: context and handle are live; slot and buffer live, unmoved, until the callback has run, for boxes
        // are dropped only after the context.
        let queued = unsafe {
            match op {
                Op::Write => (self.api.nfs_pwrite_async)(
                    self.nfs,
                    self.handle,
                    offset,
                    count,
                    at,
                    on_complete,
                    private,
                ),
                Op::Read | Op::Ping | Op::Copy => {
                    (self.api.nfs_pread_async)(self.nfs, self.handle, offset, count, on_complete, private)
                }
            }
        };
        ensure!(queued == 0, "libnfs refused a request: {}", self.error());
        slot.in_flight.set(true);
        Ok(())
    }

    /// Waits until an operation completes; its slot.
    pub(crate) fn wait_any(&mut self) -> anyhow::Result<usize> {
        const TIMEOUT_MS: c_int = 10_000;
        loop {
            let completed = self.completed.borrow_mut().pop_front();
            if let Some(index) = completed {
                let slot = &mut self.slots[index];
                let wanted = slot.buffer.get_mut().len();
                return self.check(self.slots[index].result.get(), wanted).map(|()| index);
            }
            // SAFETY: the context is live.
            let (fd, events) =
                unsafe { ((self.api.nfs_get_fd)(self.nfs), (self.api.nfs_which_events)(self.nfs)) };
            let events = libc::c_short::try_from(events).context("libnfs asks for unknown events")?;
            let mut poll = libc::pollfd { fd, events, revents: 0 };
            // SAFETY: one pollfd is passed, and its count says so.
            let ready = unsafe { libc::poll(&raw mut poll, 1, TIMEOUT_MS) };
            ensure!(ready != 0, "the NFS server has not answered for {TIMEOUT_MS} ms");
            crate::interrupt::check()?;
            // SAFETY: the context is live; callbacks run within this call and touch only slots.
            let served = unsafe { (self.api.nfs_service)(self.nfs, c_int::from(poll.revents)) };
            ensure!(served == 0, "the NFS connection broke: {}", self.error());
        }
    }

    fn check(&self, moved: c_int, wanted: usize) -> anyhow::Result<()> {
        match usize::try_from(moved) {
            Ok(moved) if moved == wanted => Ok(()),
            Ok(moved) => Err(anyhow!("NFS moved {moved} of {wanted} bytes")),
            Err(_) => Err(anyhow!("NFS: {}", self.error())),
        }
    }

    fn error(&self) -> String {
        // SAFETY: the context is live; the string belongs to it and is copied before the next call.
        let text = unsafe { (self.api.nfs_get_error)(self.nfs) };
        if text.is_null() {
            return "no reason given".to_owned();
        }
        // SAFETY: not null, and null-terminated by libnfs.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }
}

impl Drop for File {
    fn drop(&mut self) {
        // SAFETY: the context is live and not used again. Operations in flight are completed with an error meanwhile,
        // in slots that are still there.
        unsafe { (self.api.nfs_destroy_context)(self.nfs) };
    }
}

/// Called by libnfs from `nfs_service` or `nfs_destroy_context`.
extern "C" fn on_complete(result: c_int, _nfs: *mut c_void, data: *mut c_void, private: *mut c_void) {
    // SAFETY: `private` is the slot given to the request, which lives until after the context; one thread.
    let slot = unsafe { &*private.cast::<Slot>() };
    if let (true, Ok(count)) = (slot.read.get(), usize::try_from(result)) {
        // SAFETY: the slot is in flight, so nobody else refers to its buffer; `data` holds `count` bytes.
        unsafe {
            let buffer = &mut *slot.buffer.get();
            let count = count.min(buffer.len());
            std::ptr::copy_nonoverlapping(data.cast::<u8>(), buffer.as_mut_ptr(), count);
        }
    }
    slot.result.set(result);
    slot.in_flight.set(false);
    slot.completed.borrow_mut().push_back(slot.index);
}
