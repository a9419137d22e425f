use super::body::{body, field_by_number};
use super::{Attributes, Status, WireError};

bitflags::bitflags! {
    /// What a [`VerifyRequest`] compares.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct VerifyMask: u32 {
        /// [`Attributes::change`].
        const CHANGE = 0x1;
        /// [`Attributes::size`].
        const SIZE = 0x2;
        /// [`Attributes::mtime`].
        const MTIME = 0x4;
        /// [`Attributes::file_id`] and [`Attributes::generation`].
        const IDENTITY = 0x8;
    }
}

field_by_number!(VerifyMask, u32, |mask| mask.bits(), VerifyMask::from_bits);

bitflags::bitflags! {
    /// How a [`VerifyRequest`] compares.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct VerifyFlags: u32 {
        /// At least one attribute must differ; without it, none may.
        const DIFFER = 0x1;
        /// A symbolic link at the end of the path is followed.
        const FOLLOW = 0x2;
    }
}

field_by_number!(VerifyFlags, u32, |flags| flags.bits(), VerifyFlags::from_bits);

body! {
    /// Body of a verify, 56 bytes; the payload is the path below the header's handle. What the mask does not name is 0.
    #[derive(Default)]
    pub struct VerifyRequest("verify request") {
        /// What is compared; not empty.
        pub mask: VerifyMask = "verify mask",
        /// How.
        pub flags: VerifyFlags = "verify flags",
        /// With [`VerifyMask::CHANGE`].
        pub change: u64 = "change",
        /// With [`VerifyMask::SIZE`], bytes.
        pub size: u64 = "size",
        /// With [`VerifyMask::MTIME`]: seconds since 1970, two's complement.
        pub mtime_seconds: u64 = "mtime",
        /// With [`VerifyMask::MTIME`]: nanoseconds behind them.
        pub mtime_nanoseconds: u32 = "nanoseconds of mtime" and 4 reserved,
        /// With [`VerifyMask::IDENTITY`].
        pub file_id: u64 = "file id",
        /// With [`VerifyMask::IDENTITY`].
        pub generation: u64 = "generation",
    }
    check |request| check(request)
}

fn check(request: &VerifyRequest) -> Result<(), WireError> {
    let VerifyRequest { mask, change, size, mtime_seconds, mtime_nanoseconds, file_id, generation, .. } =
        *request;
    if mask.is_empty() {
        return Err(WireError::Invalid { what: "verify mask", value: 0 });
    }
    if mtime_nanoseconds >= 1_000_000_000 {
        return Err(WireError::Invalid { what: "nanoseconds of mtime", value: mtime_nanoseconds.into() });
    }
    let unused = [
        (VerifyMask::CHANGE, change),
        (VerifyMask::SIZE, size),
        (VerifyMask::MTIME, mtime_seconds | u64::from(mtime_nanoseconds)),
        (VerifyMask::IDENTITY, file_id | generation),
    ];
    match unused.into_iter().find(|(bit, value)| *value != 0 && !mask.contains(*bit)) {
        Some((_, value)) => Err(WireError::Invalid { what: "attribute that is not compared", value }),
        None => Ok(()),
    }
}

impl VerifyRequest {
    /// What the server answers where these are the attributes.
    pub fn outcome(&self, found: &Attributes) -> Status {
        let mtime = (found.mtime.seconds.cast_unsigned(), found.mtime.nanoseconds);
        let same = [
            (VerifyMask::CHANGE, found.change == self.change),
            (VerifyMask::SIZE, found.size == self.size),
            (VerifyMask::MTIME, mtime == (self.mtime_seconds, self.mtime_nanoseconds)),
            (VerifyMask::IDENTITY, (found.file_id, found.generation) == (self.file_id, self.generation)),
        ];
        let is_same = same.into_iter().all(|(bit, same)| same || !self.mask.contains(bit));
        match (is_same, self.flags.contains(VerifyFlags::DIFFER)) {
            (true, false) | (false, true) => Status::OK,
            (false, false) => Status::NOT_SAME,
            (true, true) => Status::SAME,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{FileKind, HEADER_SIZE, Timestamp};
    use super::*;

    fn found() -> Attributes {
        let time = Timestamp { seconds: -3, nanoseconds: 4 };
        Attributes {
            kind: FileKind::File,
            mode: 0o644,
            links: 1,
            uid: 0,
            gid: 0,
            size: 2,
            allocated: 0,
            file_id: 5,
            fs_id: 0,
            atime: time,
            mtime: time,
            ctime: time,
            device: 0,
            generation: 6,
            change: 1,
        }
    }

    fn all() -> VerifyRequest {
        VerifyRequest {
            mask: VerifyMask::all(),
            flags: VerifyFlags::empty(),
            change: 1,
            size: 2,
            mtime_seconds: (-3i64).cast_unsigned(),
            mtime_nanoseconds: 4,
            file_id: 5,
            generation: 6,
        }
    }

    // [WIRE-131] [STOR-132] [STOR-133]
    #[test]
    fn verify_fails_on_any_difference_and_with_differ_on_none() {
        let other = [
            VerifyRequest { change: 0, ..all() },
            VerifyRequest { size: 3, ..all() },
            VerifyRequest { mtime_seconds: 3, ..all() },
            VerifyRequest { mtime_nanoseconds: 5, ..all() },
            VerifyRequest { file_id: 4, ..all() },
            VerifyRequest { generation: 7, ..all() },
        ];
        let named = [0x1, 0x2, 0x4, 0x4, 0x8, 0x8].map(VerifyMask::from_bits_retain);
        let differ = |request| VerifyRequest { flags: VerifyFlags::DIFFER, ..request };
        assert_eq!(all().outcome(&found()), Status::OK);
        assert_eq!(differ(all()).outcome(&found()), Status::SAME);
        for (request, mask) in other.into_iter().zip(named) {
            assert_eq!(request.outcome(&found()), Status::NOT_SAME, "{request:?}");
            assert_eq!(differ(request).outcome(&found()), Status::OK, "{request:?}");
            // What is not named is not looked at.
            let others = VerifyRequest { mask: VerifyMask::all() - mask, ..request };
            assert_eq!(others.outcome(&found()), Status::OK, "{others:?}");
        }
    }

    // [WIRE-138]
    #[test]
    fn verify_with_empty_mask_or_unused_values_is_refused() {
        let decode = |request: VerifyRequest| {
            let mut body = [0; VerifyRequest::HEAD_SIZE - HEADER_SIZE];
            request.encode(&mut body);
            VerifyRequest::decode(&body)
        };
        assert_eq!(decode(all()), Ok(all()));
        for bits in 0..VerifyMask::all().bits() {
            let mask = VerifyMask::from_bits_retain(bits);
            assert!(decode(VerifyRequest { mask, ..all() }).is_err(), "{mask:?}");
        }
        let unknown = VerifyMask::from_bits_retain(0x10);
        assert!(decode(VerifyRequest { mask: VerifyMask::all() | unknown, ..all() }).is_err());
        for (nanoseconds, is_good) in [(999_999_999, true), (1_000_000_000, false), (u32::MAX, false)] {
            let request = VerifyRequest { mtime_nanoseconds: nanoseconds, ..all() };
            assert_eq!(decode(request).is_ok(), is_good, "{nanoseconds}");
        }
    }
}
