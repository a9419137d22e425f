//! Mounts and unmounts.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fuser::{Config, Filesystem, InitFlags, KernelConfig, MountOption, Session, SessionACL};
use rustix::fs::{Mode, OFlags};
use rustix::mount::{MountFlags, UnmountFlags};

use super::device::{DATA_SIZE_MAX, Device};

/// What the kernel is told when it mounts.
#[derive(Clone, Debug)]
pub(crate) struct Terms {
    /// What is mounted, as mount(8) shows it.
    pub(crate) source: String,
    pub(crate) read_only: bool,
    /// No file of it can be executed.
    pub(crate) no_exec: bool,
    /// Other users may use the mount. The kernel checks permissions too then, since it keeps names that it has looked up for one of them.
    pub(crate) for_all: bool,
    /// The kernel gathers writes.
    pub(crate) writeback: bool,
    /// The kernel is given files that it reads and writes itself, where it can.
    pub(crate) local: bool,
}

/// Takes part in the handshake and in nothing else.
struct Handshake {
    for_all: bool,
    writeback: bool,
    local: bool,
    /// The kernel can be given files.
    is_local: Arc<AtomicBool>,
}

impl Filesystem for Handshake {
    fn init(&mut self, _: &fuser::Request, config: &mut KernelConfig) -> io::Result<()> {
        let mut wanted = InitFlags::FUSE_ASYNC_READ
            | InitFlags::FUSE_BIG_WRITES
            | InitFlags::FUSE_MAX_PAGES
            | InitFlags::FUSE_POSIX_LOCKS
            | InitFlags::FUSE_FLOCK_LOCKS
            | InitFlags::FUSE_DONT_MASK
            | InitFlags::FUSE_ASYNC_DIO
            | InitFlags::FUSE_PARALLEL_DIROPS
            | InitFlags::FUSE_DO_READDIRPLUS
            | InitFlags::FUSE_READDIRPLUS_AUTO
            | InitFlags::FUSE_AUTO_INVAL_DATA
            | InitFlags::FUSE_HANDLE_KILLPRIV_V2
            | InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP;
        if self.for_all {
            // Whom a list lets in, the kernel is to let in as well.
            wanted |= InitFlags::FUSE_POSIX_ACL;
        }
        if self.writeback {
            wanted |= InitFlags::FUSE_WRITEBACK_CACHE;
        }
        if self.local && config.capabilities().contains(InitFlags::FUSE_PASSTHROUGH) {
            wanted |= InitFlags::FUSE_PASSTHROUGH;
            // Files of an ordinary file system, and none that is stacked on another.
            self.is_local.store(config.set_max_stack_depth(1).is_ok(), Ordering::Relaxed);
        }
        let has = wanted & config.capabilities();
        // Only what the kernel has is asked for.
        let _ = config.add_capabilities(has);
        let size = u32::try_from(DATA_SIZE_MAX).unwrap_or(u32::MAX);
        let _ = config.set_max_write(size);
        let _ = config.set_max_readahead(size);
        let _ = config.set_max_background(BACKGROUND_MAX);
        let _ = config.set_time_granularity(std::time::Duration::from_nanos(1));
        Ok(())
    }
}

/// The kernel reads ahead and writes back with at most so many requests at once.
const BACKGROUND_MAX: u16 = 64;

/// A mount. Dropping it unmounts.
pub(crate) struct Mounted {
    session: Session<Handshake>,
    /// Where it was mounted without the crate, which then does not unmount.
    directly_at: Option<PathBuf>,
    is_local: Arc<AtomicBool>,
}

impl Mounted {
    /// Mounts at a directory. Needs root, or `fusermount3`.
    pub(crate) fn new(directory: &Path, terms: &Terms) -> io::Result<Self> {
        let is_local = Arc::new(AtomicBool::new(false));
        let Terms { for_all, writeback, local, .. } = *terms;
        let handshake = Handshake { for_all, writeback, local, is_local: Arc::clone(&is_local) };
        let mut config = Config::default();
        if terms.for_all {
            config.acl = SessionACL::All;
        }
        let Some(descriptor) = mount_directly(directory, terms)? else {
            config.mount_options = options_of(terms);
            return Ok(Self {
                session: Session::new(handshake, directory, &config)?,
                directly_at: None,
                is_local,
            });
        };
        let session = Session::from_fd(handshake, descriptor, config.acl, config);
        let session = session.inspect_err(|_| drop(unmount(directory, true)))?;
        Ok(Self { session, directly_at: Some(directory.to_owned()), is_local })
    }

    /// The kernel can be given files that it reads and writes itself.
    pub(crate) fn is_local(&self) -> bool {
        self.is_local.load(Ordering::Relaxed)
    }

    pub(crate) fn device(&self) -> io::Result<Device> {
        use std::os::fd::AsFd;
        Device::new(self.session.as_fd().try_clone_to_owned()?)
    }

    /// The mount is gone. The crate would unmount once more by the path, where another may be mounted by now; it has no other way to let
    /// go, so the descriptor of the mount that is gone stays until the process ends.
    pub(crate) fn gone(self) {
        std::mem::forget(self);
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Some(directory) = &self.directly_at
            && let Err(error) = unmount(directory, true)
        {
            tracing::warn!("cannot unmount {}: {error}", directory.display());
        }
    }
}

/// The type that a mount has in the kernel's list of mounts.
const TYPE: &str = "fuse.dafs";

/// Mounts without help; `None` where the kernel does not let us.
fn mount_directly(directory: &Path, terms: &Terms) -> io::Result<Option<OwnedFd>> {
    let descriptor = open_device()?;
    if !rustix::process::geteuid().is_root() {
        return Ok(None);
    }
    let mode = rustix::fs::stat(directory)?.st_mode & libc::S_IFMT;
    let (user, group) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let for_all = if terms.for_all { ",default_permissions,allow_other" } else { "" };
    let options =
        format!("fd={},rootmode={mode:o},user_id={user},group_id={group}{for_all}", descriptor.as_raw_fd());
    let flags = MountFlags::NODEV | MountFlags::NOSUID | chosen_flags(terms.read_only, terms.no_exec);
    match rustix::mount::mount(&*terms.source, directory, TYPE, flags, CString::new(options)?.as_c_str()) {
        Ok(()) => Ok(Some(descriptor)),
        Err(rustix::io::Errno::PERM) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// `fusermount3` needs it as well.
fn open_device() -> io::Result<OwnedFd> {
    let opened = rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
    opened.map_err(|error| {
        let what_to_do = match error {
            rustix::io::Errno::ACCESS => "; root may let every user open it (mode 666)",
            _ => "; root may load the module by modprobe fuse",
        };
        let cause = io::Error::from_raw_os_error(error.raw_os_error());
        io::Error::other(format!("cannot open /dev/fuse: {cause}{what_to_do}"))
    })
}

fn chosen_flags(read_only: bool, no_exec: bool) -> MountFlags {
    let mut flags = MountFlags::empty();
    flags.set(MountFlags::RDONLY, read_only);
    flags.set(MountFlags::NOEXEC, no_exec);
    flags
}

/// What `fusermount3` is told.
fn options_of(terms: &Terms) -> Vec<MountOption> {
    let mut options = vec![MountOption::FSName(terms.source.clone()), MountOption::Subtype("dafs".into())];
    if terms.read_only {
        options.push(MountOption::RO);
    }
    if terms.no_exec {
        options.push(MountOption::NoExec);
    }
    if terms.for_all {
        options.push(MountOption::DefaultPermissions);
    }
    options
}

/// Changes how what is mounted at a directory may be used. Needs root. Does not block.
pub fn remount(directory: &Path, read_only: bool, no_exec: bool) -> io::Result<()> {
    let flags = MountFlags::NODEV | MountFlags::NOSUID | chosen_flags(read_only, no_exec);
    Ok(rustix::mount::mount_remount(directory, flags, "")?)
}

/// Takes away what is mounted at a directory, by `fusermount3` where only that may. `lazily`: at once, and whoever uses it may finish; else
/// it is an error that somebody does. Blocks.
pub fn unmount(directory: &Path, lazily: bool) -> io::Result<()> {
    let how = if lazily { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    match rustix::mount::unmount(directory, how | UnmountFlags::NOFOLLOW) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::PERM) => unmount_by_helper(directory, lazily),
        Err(error) => Err(error.into()),
    }
}

/// Users may take away what they have mounted by it.
fn unmount_by_helper(directory: &Path, lazily: bool) -> io::Result<()> {
    let mut helper = Command::new("fusermount3");
    helper.arg("-u").args(lazily.then_some("-z")).arg("--").arg(directory);
    let done = helper.output().map_err(|_| {
        let cause =
            "fusermount3 is not installed, and only root unmounts without it; install the package fuse3";
        io::Error::new(io::ErrorKind::NotFound, cause)
    })?;
    match done.status.success() {
        true => Ok(()),
        false => {
            let said = String::from_utf8_lossy(&done.stderr).trim().to_owned();
            let cause = match said.contains("mtab") || said.contains("permitted") {
                true => "only root and the user who mounted it may".to_owned(),
                false => said,
            };
            Err(io::Error::other(cause))
        }
    }
}
