use super::body::body;
use super::{FileHandle, Verifier};

body! {
    /// Body of a copy on the server, 32 bytes; the header's handle is the file that is written.
    pub struct CopyRequest("copy request") {
        /// Handle of the file that is read: a [`FileHandle`].
        pub source: u64 = "source handle",
        /// First byte of the source.
        pub source_offset: u64 = "source offset",
        /// Where it goes.
        pub offset: u64 = "offset",
        /// Bytes; 0 for all that follow.
        pub len: u64 = "length",
    }
}

impl CopyRequest {
    /// The file that is read.
    pub fn source(&self) -> FileHandle {
        FileHandle(self.source)
    }
}

body! {
    /// Body of the reply to a copy, 24 bytes.
    pub struct CopyReply("copy reply") {
        /// Bytes copied, from the first one on: fewer than asked for where the source ended, or the server left the rest for another
        /// request.
        pub count: u64 = "copy count",
        /// Of unstable data: compare with that of the commit.
        pub verifier: Verifier = "verifier",
        /// The source ended.
        pub end: bool = "end of the source" and 4 reserved,
    }
}
