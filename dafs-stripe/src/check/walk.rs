//! All striped files of an export.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};

use dafs_client::{Attributes, Dir, Error as ClientError, FileKind, Pending};

use crate::data_server::os_path;
use crate::error::Result;
use crate::layout::{LAYOUT_XATTR, Layout};
use crate::volume::{Volume, has_none};

/// Requests in flight at once.
const IN_FLIGHT_MAX: usize = 64;

/// A file with a layout.
pub(super) struct Striped {
    pub(super) path: String,
    pub(super) attributes: Attributes,
    pub(super) layout: Layout,
}

/// What a walk has met.
#[derive(Default)]
pub(super) struct Found {
    pub(super) files: u64,
    pub(super) striped: Vec<Striped>,
    /// Files whose layout cannot be read, and why.
    pub(super) unreadable: Vec<(String, String)>,
}

type Asked = (PathBuf, Attributes, Pending<std::result::Result<Vec<u8>, ClientError>>);

pub(super) fn walk(volume: &Volume) -> Result<Found> {
    let (root, mut found) = (volume.root(), Found::default());
    let (mut directories, mut asked) = (vec![PathBuf::new()], VecDeque::new());
    while let Some(directory) = directories.pop() {
        let entries = match root.read_dir(&directory, true) {
            // It was removed meanwhile.
            Err(error) if error.is_not_found() => continue,
            entries => entries?,
        };
        for entry in entries {
            let entry = entry?;
            let path = directory.join(os_path(&entry.name));
            match entry.attributes {
                Some(attributes) if attributes.kind == FileKind::Directory => directories.push(path),
                Some(attributes) if attributes.kind == FileKind::File => {
                    found.files += 1;
                    ask(root, &path, attributes, &mut asked);
                    while asked.len() > IN_FLIGHT_MAX {
                        found.answered(asked.pop_front())?;
                    }
                }
                _ => {}
            }
        }
    }
    while !asked.is_empty() {
        found.answered(asked.pop_front())?;
    }
    Ok(found)
}

/// Of every file: one whose mode was changed, or that has data, may have a layout all the same.
fn ask(root: &Dir, path: &Path, attributes: Attributes, asked: &mut VecDeque<Asked>) {
    asked.push_back((path.to_owned(), attributes, root.submit_xattr(path, LAYOUT_XATTR)));
}

impl Found {
    fn answered(&mut self, asked: Option<Asked>) -> Result<()> {
        let Some((path, attributes, pending)) = asked else { return Ok(()) };
        let path = path.display().to_string();
        match pending.wait() {
            Ok(bytes) => match Layout::parse(&bytes) {
                Ok(layout) => self.striped.push(Striped { path, attributes, layout }),
                Err(cause) => self.unreadable.push((path, cause)),
            },
            Err(error) if has_none(&error) || error.is_not_found() => {}
            Err(error @ ClientError::Status { .. }) => self.unreadable.push((path, error.cause())),
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }
}
