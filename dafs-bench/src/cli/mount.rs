//! Mounted file systems, as the command line names them.

use std::path::PathBuf;

use serde::Serialize;

/// A mounted file system to compare with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Mount {
    /// Its name in reports.
    pub name: String,
    /// A directory in it.
    pub directory: PathBuf,
}

pub(super) fn parse(text: &str) -> Result<Mount, String> {
    match text.split_once('=') {
        Some((name, directory)) if !name.is_empty() && !directory.is_empty() => {
            Ok(Mount { name: name.to_owned(), directory: directory.into() })
        }
        _ => Err("not a name and a directory; write them like nfs-rdma=/mnt/nfs".to_owned()),
    }
}
