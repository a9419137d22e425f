//! Attributes: asked for, set, and whether a caller may do something.

use dafs_client::{AccessMode, OpenOptions, SetAttributes, SetTime, Timestamp};

use super::names::PERMISSIONS;
use crate::kernel::errno::Answer;
use crate::kernel::reply::Fields;
use crate::kernel::request::{AttributesAsked, Header};
use crate::volume::Volume;

impl Volume {
    pub(super) async fn get_attributes(&self, asks: &Header, file: Option<u64>) -> Answer<Vec<u8>> {
        let open = match file {
            Some(number) => self.opened_file(number).await.ok(),
            None => None,
        };
        if open.is_none()
            && let Some(ahead) = self.ahead.take(asks.node, self.attributes_valid()).await
        {
            let (attributes, valid) = ahead?;
            return Ok(Fields::new().timed_attributes(&attributes, valid).into_bytes());
        }
        let attributes = match open {
            Some(open) if open.node == asks.node => open.file.submit_metadata().await?,
            _ => {
                let caller = self.callers.of(asks).await?;
                self.attributes(asks.node, &caller).await?
            }
        };
        Ok(Fields::new().timed_attributes(&attributes, self.attributes_valid()).into_bytes())
    }

    pub(super) async fn set_attributes(&self, asks: &Header, asked: &AttributesAsked) -> Answer<Vec<u8>> {
        let open = match asked.file {
            Some(number) => self.opened_file(number).await.ok(),
            None => None,
        };
        if let Some(size) = asked.size {
            match &open {
                Some(open) => open.file.submit_truncate(size).await?,
                None => {
                    let file = self.directory(asks).await?;
                    let how = OpenOptions::new().write(true).clone();
                    let file = self.with_room(|| file.submit_open_with("", &how)).await?;
                    file.submit_truncate(size).await?;
                }
            }
        }
        let set = SetAttributes {
            mode: asked.mode.map(|mode| mode & PERMISSIONS),
            uid: asked.uid,
            gid: asked.gid,
            atime: asked.atime.map(time),
            mtime: asked.mtime.map(time),
        };
        let is_nothing = set == SetAttributes::default();
        let caller = self.callers.of(asks).await?;
        let attributes = match &open {
            _ if is_nothing => self.attributes(asks.node, &caller).await?,
            // What another may do with a file that he has open, the caller need not be able to.
            Some(open) if open.caller.number == caller.number => {
                open.file.submit_set_attributes(&set).await?
            }
            _ => self.handle(asks.node, &caller).await?.submit_set_attributes("", false, &set).await?,
        };
        self.ahead.forget(asks.node);
        Ok(Fields::new().timed_attributes(&attributes, self.attributes_valid()).into_bytes())
    }

    pub(super) async fn access(&self, asks: &Header, mask: u32) -> Answer<()> {
        let node = self.directory(asks).await?;
        Ok(node.submit_access("", AccessMode::from_bits_truncate(mask)).await?)
    }
}

/// A moment, or now.
fn time(at: Option<(i64, u32)>) -> SetTime {
    at.map_or(SetTime::Now, |(seconds, nanoseconds)| SetTime::At(Timestamp { seconds, nanoseconds }))
}
