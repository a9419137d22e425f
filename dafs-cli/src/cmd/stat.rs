//! `dafs stat`.

use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;

use dafs_client::{Attributes, FileKind};

use crate::flags::Stat;
use crate::format::{self, Owners};
use crate::local_time;
use crate::output::Output;
use crate::remote::{Remotes, Target};
use crate::report::{Failures, Result};

pub(crate) fn run(flags: &Stat, remotes: &Remotes) -> Result<ExitCode> {
    let (mut out, failures) = (Output::new(), Failures::default());
    let mut owners = Owners::default();
    remotes.each(&flags.urls, &failures, |target| show(flags, &target, &mut out, &mut owners))?;
    out.flush()?;
    Ok(failures.exit())
}

fn show(flags: &Stat, target: &Target, out: &mut Output, owners: &mut Owners) -> Result<()> {
    let found = match flags.dereference {
        true => target.export.metadata(&target.path),
        false => target.export.symlink_metadata(&target.path),
    };
    let attributes = found.map_err(|error| target.failed("look at", &error))?;
    let whole = target.volume.whole_attributes(target.export.root(), &target.path, attributes);
    let attributes = whole.map_err(|error| target.failed_striped("look at", &error))?;
    let points_to = match attributes.kind {
        FileKind::Symlink => Some(
            target
                .export
                .read_link(&target.path)
                .map_err(|error| target.failed("read the symbolic link", &error))?,
        ),
        _ => None,
    };
    let url = target.url().to_os_string();
    if flags.json {
        return out
            .line(&format::attributes_json(url.as_bytes(), &attributes, points_to.as_deref()).to_string());
    }
    out.text("  File: ")?;
    out.name(url.as_bytes())?;
    if let Some(points_to) = points_to {
        out.text(" -> ")?;
        out.name(&points_to)?;
    }
    out.line("")?;
    out.text(&rest(&attributes, owners))
}

fn rest(attributes: &Attributes, owners: &mut Owners) -> String {
    let user = owners.user(attributes.uid).to_owned();
    format!(
        "  Size: {:<14} Allocated: {:<14} {}\n\
         \x20Inode: {:<14} File system: {:<12x} Links: {}\n\
         \x20 Mode: {:04o} ({})  Uid: {} ({user})  Gid: {} ({})\n\
         Access: {}\nModify: {}\nChange: {}\n",
        attributes.size,
        attributes.allocated,
        format::kind_name(attributes.kind),
        attributes.file_id,
        attributes.fs_id,
        attributes.links,
        attributes.mode,
        format::mode(attributes.kind, attributes.mode),
        attributes.uid,
        attributes.gid,
        owners.group(attributes.gid),
        local_time::long(attributes.atime),
        local_time::long(attributes.mtime),
        local_time::long(attributes.ctime),
    )
}
