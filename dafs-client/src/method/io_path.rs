//! The one decision: how the data of a read or write travels. A pure function with its reasons, which every transfer asks once.

use dafs_proto::wire::{GatherSwitches, Thresholds};

use crate::memory::registration::RegistrationPolicy;
use crate::method::noncontiguous::{Noncontiguous, decide_pieces};

/// The transfer method of reads and writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum MethodOverride {
    /// Whichever is faster, by the thresholds that the server exports.
    #[default]
    Auto,
    /// In messages, cut into as many as needed.
    Inline,
    /// By RDMA of the server.
    Direct,
    /// By RDMA of the server, through bounce buffers of the library unless the memory is registered.
    Bounced,
    /// Eager: through buffers that both sides registered when the session began, by RDMA write with immediate. The client copies the data,
    /// unless it writes from registered memory. Where the server lends no such buffers, as `Direct`.
    Eager,
    /// Client-initiated: by RDMA of the client, into and out of buffers that the server lent when the session began. Where the server lends
    /// none, as `Direct`.
    ClientInitiated,
    /// The side that can use RDMA write moves the data: the client for writes, the server for reads.
    Hybrid,
}

impl MethodOverride {
    /// All of them, with their names in settings.
    pub const ALL: [(Self, &'static str); 7] = [
        (Self::Auto, "auto"),
        (Self::Inline, "inline"),
        (Self::Direct, "direct"),
        (Self::Bounced, "bounced"),
        (Self::Eager, "eager"),
        (Self::ClientInitiated, "client-initiated"),
        (Self::Hybrid, "hybrid"),
    ];

    /// It needs buffers lent by the server.
    pub(crate) fn uses_eager_buffers(self) -> bool {
        matches!(self, Self::Eager | Self::ClientInitiated | Self::Hybrid)
    }
}

/// Which way data goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From the server.
    Read,
    /// To the server.
    Write,
}

/// What is known of the caller's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Registration {
    /// Registered already: a [`crate::RegisteredBuf`].
    Registered,
    /// Ordinary memory.
    Ordinary,
}

/// How data travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IoPath {
    /// In messages.
    Inline,
    /// By RDMA of the server, from or to the caller's registered memory.
    Direct,
    /// By RDMA of the server, from or to the caller's memory, registered for this operation.
    DirectRegister,
    /// By RDMA of the server, through bounce buffers of the library.
    Bounced,
    /// Eager: by RDMA write with immediate, through buffers that both sides registered before.
    Eager,
    /// Client-initiated: by RDMA of the client, into or out of buffers that the server lent.
    ClientInitiated,
}

impl IoPath {
    /// The name in reports: the method on the wire, and how memory is registered.
    pub fn name(self) -> &'static str {
        match self {
            Self::Inline => "inline",
            Self::Direct => "direct",
            Self::DirectRegister => "direct, registered for the operation",
            Self::Bounced => "direct, bounced",
            Self::Eager => "eager",
            Self::ClientInitiated => "client-initiated",
        }
    }

    /// Through an eager buffer.
    pub(crate) fn uses_eager_buffer(self) -> bool {
        matches!(self, Self::Eager | Self::ClientInitiated)
    }
}

/// What a decision is made from.
#[derive(Clone, Copy, Debug)]
pub struct Circumstances {
    /// Which way.
    pub direction: Direction,
    /// Bytes of the whole transfer.
    pub size: u64,
    /// The caller's memory.
    pub registration: Registration,
    /// What the server exports.
    pub thresholds: Thresholds,
    /// What the configuration demands.
    pub method: MethodOverride,
    /// Largest inline payload of this connection in this direction, bytes: the lesser of the server's limit and the posted buffers.
    pub inline_max: u32,
    /// The provider registers ordinary memory for one operation at a cost that does not depend on its size.
    pub registers_ordinary_memory: bool,
    /// The library has bounce buffers.
    pub can_bounce: bool,
    /// The server has lent eager buffers.
    pub has_eager_buffers: bool,
    /// The transfer may be cut into inline messages, and the server fetches direct data from this side at the cost of a round trip:
    /// a write over a stream that need not be durable or in one piece.
    pub cuts_inline: bool,
    /// Copying into those buffers goes on while the server, which has them mapped, works on what was copied before: for blocking writes.
    pub bounce_overlaps: bool,
    /// Whether to send direct, as this session has learned or tries now, where the server's crossover says otherwise.
    pub refined: Option<bool>,
    /// What the transfer is besides so many bytes.
    pub form: Form,
}

/// What a transfer is, as far as that decides how its data travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Memory in one piece, or in several that are cut and moved as if it were.
    Contiguous,
    /// Memory in several pieces.
    Pieces(Pieces),
    /// A list with such small gaps that reading them too, through one bounce buffer, costs less than describing the extents.
    Dense,
    /// Entries of a directory: one request, in the message or into memory that is registered.
    Directory,
    /// One operation of a batch.
    Batched {
        /// The server has registered memory mapped.
        is_mapped: bool,
    },
}

/// Memory in several pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pieces {
    /// How many, at least one.
    pub count: usize,
    /// What the configuration demands.
    pub method: Noncontiguous,
    /// What the server measured.
    pub switches: Option<GatherSwitches>,
    /// For `Noncontiguous::Auto`: whether to gather, as this session has learned, or tries now.
    pub learned: Option<bool>,
}

/// Bytes of one operation of a batch that travel in the messages where the server has memory mapped: measured on shared memory, more is
/// moved sooner when one request tells of all of a batch than when messages carry it.
const MAPPED_INLINE_MAX: u64 = 512;

impl Circumstances {
    /// The size from which the server says that direct pays.
    #[inline]
    pub(crate) fn crossover(&self) -> u32 {
        let all = &self.thresholds.crossovers;
        let reads = [all.read_registered, all.read_unregistered];
        let writes = [all.write_registered, all.write_unregistered];
        [reads, writes][self.direction as usize][self.registration as usize]
    }

    /// For a transfer of a file with this policy: unless it is the library's, memory is registered whatever that costs, and not copied.
    #[inline]
    pub(crate) fn under(&mut self, policy: RegistrationPolicy) {
        if policy != RegistrationPolicy::Library {
            self.registers_ordinary_memory = true;
            self.bounce_overlaps = false;
        }
    }
}

/// A decision and its reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// How the data travels.
    pub path: IoPath,
    /// Why.
    pub reason: Reason,
}

/// Why a path was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// There is nothing to move.
    Empty,
    /// The configuration says so.
    Override,
    /// The configuration asks for a method that needs buffers lent by the server, which lends none to this session.
    NoEagerBuffers,
    /// Below the size from which Direct pays.
    BelowCrossover {
        /// That size, bytes.
        crossover: u32,
    },
    /// At or above the size from which Direct pays.
    FromCrossover {
        /// That size, bytes.
        crossover: u32,
    },
    /// Too large for one message.
    AboveInlineMax {
        /// The largest payload, bytes.
        inline_max: u32,
    },
    /// Too large for one message, and cut: Inline is faster up to its limit, and direct data would cost a round trip more.
    CutInline {
        /// The largest payload, bytes.
        inline_max: u32,
    },
    /// No memory can be registered.
    NothingToRegister,
    /// The memory is in several pieces, and the configuration demands this method.
    Noncontiguous {
        /// Its name.
        method: &'static str,
    },
    /// The memory is in pieces too small to be gathered one by one: they are packed.
    BelowSwitch {
        /// Bytes of a piece from which gathering pays.
        switch: u32,
    },
    /// The memory is in pieces large enough to be gathered.
    FromSwitch {
        /// Bytes of a piece from which gathering pays.
        switch: u32,
    },
    /// The memory is in pieces, and by the times of this session they are packed, or that is tried.
    LearnedPack,
    /// The memory is in pieces, and by the times of this session they are gathered, or that is tried.
    LearnedGather,
    /// By the times of this session inline is quicker at this size, or that is tried.
    RefinedInline,
    /// By the times of this session direct is quicker at this size, or that is tried.
    RefinedDirect,
    /// A list is read with its gaps.
    Dense,
    /// Too large for the messages of a batch, where the server has memory mapped.
    Batched,
}

/// Decides how the data of a transfer travels.
#[inline]
pub fn decide(c: &Circumstances) -> Decision {
    match c.form {
        // No bytes have no address that a peer could reach.
        _ if c.size == 0 => Decision { path: IoPath::Inline, reason: Reason::Empty },
        Form::Contiguous => decide_contiguous(c),
        Form::Pieces(pieces) => decide_pieces(c, &pieces),
        Form::Dense => Decision { path: IoPath::Bounced, reason: Reason::Dense },
        Form::Directory => match decide_contiguous(c) {
            decision @ Decision { path: IoPath::Direct, .. } => decision,
            Decision { reason, .. } => Decision { path: IoPath::Inline, reason },
        },
        Form::Batched { is_mapped: true }
            if c.size > MAPPED_INLINE_MAX && c.method == MethodOverride::Auto =>
        {
            Decision { path: direct(c, false), reason: Reason::Batched }
        }
        Form::Batched { .. } => decide_contiguous(c),
    }
}

#[inline]
pub(crate) fn decide_contiguous(c: &Circumstances) -> Decision {
    match c.method {
        MethodOverride::Inline => return Decision { path: IoPath::Inline, reason: Reason::Override },
        MethodOverride::Direct => return Decision { path: direct(c, false), reason: Reason::Override },
        MethodOverride::Bounced => return Decision { path: direct(c, true), reason: Reason::Override },
        MethodOverride::Eager | MethodOverride::ClientInitiated | MethodOverride::Hybrid => {
            return through_eager_buffers(c);
        }
        MethodOverride::Auto => {}
    }
    match c.refined {
        Some(false) => return Decision { path: IoPath::Inline, reason: Reason::RefinedInline },
        Some(true) => {
            let path = direct(c, c.bounce_overlaps && c.direction == Direction::Write);
            return Decision { path, reason: Reason::RefinedDirect };
        }
        None => {}
    }
    let crossover = c.crossover();
    if c.size <= u64::from(c.inline_max) && c.size < u64::from(crossover) {
        return Decision { path: IoPath::Inline, reason: Reason::BelowCrossover { crossover } };
    }
    if c.cuts_inline && crossover > c.inline_max {
        let reason = Reason::CutInline { inline_max: c.inline_max };
        return Decision { path: IoPath::Inline, reason };
    }
    let path = direct(c, c.bounce_overlaps && c.direction == Direction::Write);
    let reason = match path {
        IoPath::Inline => Reason::NothingToRegister,
        _ if c.size >= u64::from(crossover) => Reason::FromCrossover { crossover },
        _ => Reason::AboveInlineMax { inline_max: c.inline_max },
    };
    Decision { path, reason }
}

impl Decision {
    /// The decision in words.
    pub fn explain(&self, c: &Circumstances) -> String {
        let direction = match c.direction {
            Direction::Read => "read",
            Direction::Write => "write",
        };
        let memory = match c.registration {
            Registration::Registered => "registered",
            Registration::Ordinary => "ordinary",
        };
        let why = match self.reason {
            Reason::Empty => "there is nothing to move".to_owned(),
            Reason::Override => "the configuration demands it".to_owned(),
            Reason::NoEagerBuffers => {
                "the server lends this session no buffers, which the configured method needs".to_owned()
            }
            Reason::BelowCrossover { crossover } => format!("direct pays from {crossover} bytes"),
            Reason::FromCrossover { crossover } => format!("direct pays from {crossover} bytes"),
            Reason::AboveInlineMax { inline_max } => format!("a message carries at most {inline_max} bytes"),
            Reason::CutInline { inline_max } => format!(
                "direct is not faster at any inline size; the data goes in messages of up to {inline_max} bytes"
            ),
            Reason::Noncontiguous { method } => format!("the configuration demands {method}"),
            Reason::BelowSwitch { switch } => {
                format!("its pieces are packed: gathering pays from pieces of {switch} bytes")
            }
            Reason::FromSwitch { switch } => {
                format!("its pieces are gathered, which pays from pieces of {switch} bytes")
            }
            Reason::LearnedPack => "packing its pieces is faster in this session, or is on trial".to_owned(),
            Reason::LearnedGather => {
                "gathering its pieces is faster in this session, or is on trial".to_owned()
            }
            Reason::RefinedInline => "inline is faster in this session, or is on trial".to_owned(),
            Reason::RefinedDirect => "direct is faster in this session, or is on trial".to_owned(),
            Reason::Dense => "its gaps are so small that they are read too".to_owned(),
            Reason::Batched => {
                format!(
                    "a message carries at most {MAPPED_INLINE_MAX} bytes of each operation of a batch here"
                )
            }
            Reason::NothingToRegister => {
                "the provider registers no ordinary memory, and there are no bounce buffers".to_owned()
            }
        };
        format!("{direction} of {} bytes, {memory} memory: {}, because {why}", c.size, self.path.name())
    }
}

/// The methods of eager buffers, or what takes their place.
#[cold]
fn through_eager_buffers(c: &Circumstances) -> Decision {
    let path = match (c.method, c.direction) {
        (MethodOverride::Hybrid, Direction::Read) => {
            return Decision { path: direct(c, false), reason: Reason::Override };
        }
        _ if !c.has_eager_buffers => {
            return Decision { path: direct(c, false), reason: Reason::NoEagerBuffers };
        }
        (MethodOverride::Eager, _) => IoPath::Eager,
        _ => IoPath::ClientInitiated,
    };
    Decision { path, reason: Reason::Override }
}

/// The direct form that fits the memory; inline where there is none.
pub(crate) fn direct(c: &Circumstances, bounced: bool) -> IoPath {
    match c.registration {
        Registration::Registered => IoPath::Direct,
        Registration::Ordinary if c.registers_ordinary_memory && !(bounced && c.can_bounce) => {
            IoPath::DirectRegister
        }
        Registration::Ordinary if c.can_bounce => IoPath::Bounced,
        Registration::Ordinary => IoPath::Inline,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dafs_proto::wire::Crossovers;

    fn circumstances(direction: Direction, size: u64, registration: Registration) -> Circumstances {
        Circumstances {
            direction,
            size,
            registration,
            thresholds: Thresholds {
                read_inline_max: 8000,
                write_inline_max: 8000,
                crossovers: Crossovers {
                    read_registered: 1000,
                    read_unregistered: 2000,
                    write_registered: 3000,
                    write_unregistered: 10_000,
                },
            },
            method: MethodOverride::Auto,
            inline_max: 8000,
            registers_ordinary_memory: true,
            can_bounce: true,
            has_eager_buffers: false,
            cuts_inline: false,
            bounce_overlaps: false,
            refined: None,
            form: Form::Contiguous,
        }
    }

    // [CLI-4]
    #[test]
    fn decision_where_direct_never_pays_cuts_what_may_be_cut() {
        for (inline_max, cut) in [(9_999, true), (10_000, false), (10_001, false)] {
            let mut c = circumstances(Direction::Write, 1 << 20, Registration::Ordinary);
            (c.inline_max, c.cuts_inline) = (inline_max, true);
            let decision = decide(&c);
            assert_eq!(decision.path == IoPath::Inline, cut, "{inline_max}");
            assert_eq!(decision.reason == Reason::CutInline { inline_max }, cut, "{inline_max}");
            c.cuts_inline = false;
            assert_eq!(decide(&c).path, IoPath::DirectRegister, "{inline_max}");
        }
    }

    #[test]
    fn decision_without_eager_buffers_registers_rather_than_copies() {
        for method in [MethodOverride::Eager, MethodOverride::ClientInitiated, MethodOverride::Hybrid] {
            for (registers, path) in [(true, IoPath::DirectRegister), (false, IoPath::Bounced)] {
                let mut c = circumstances(Direction::Write, 20_000, Registration::Ordinary);
                (c.method, c.registers_ordinary_memory) = (method, registers);
                let decided = Decision { path, reason: Reason::NoEagerBuffers };
                assert_eq!(decide(&c), decided, "{method:?}");
            }
        }
    }

    // [CLI-94] on every kind of provider
    #[test]
    fn decision_under_a_policy_registers_and_does_not_copy() {
        for policy in [RegistrationPolicy::Operation, RegistrationPolicy::Kept] {
            for (registers, can_bounce, overlaps) in
                [(true, true, true), (true, true, false), (false, true, true), (false, false, false)]
            {
                for direction in [Direction::Read, Direction::Write] {
                    let decided = |size| {
                        let mut c = circumstances(direction, size, Registration::Ordinary);
                        (c.registers_ordinary_memory, c.can_bounce, c.bounce_overlaps) =
                            (registers, can_bounce, overlaps);
                        c.under(policy);
                        decide(&c).path
                    };
                    let size_min = if direction == Direction::Read { 2000 } else { 8001 };
                    assert_eq!(decided(size_min - 1), IoPath::Inline, "{policy:?}");
                    assert_eq!(decided(size_min), IoPath::DirectRegister, "{policy:?}");
                }
            }
            let mut bounced = circumstances(Direction::Read, 1 << 20, Registration::Ordinary);
            bounced.method = MethodOverride::Bounced;
            bounced.under(policy);
            assert_eq!(decide(&bounced).path, IoPath::Bounced, "the configuration goes before");
        }
    }

    // [CLI-5]
    #[test]
    fn decision_where_bouncing_overlaps_bounces_ordinary_writes_and_nothing_else() {
        let decided = |direction, registration, change: fn(&mut Circumstances)| {
            let mut c =
                Circumstances { bounce_overlaps: true, ..circumstances(direction, 20_000, registration) };
            change(&mut c);
            decide(&c).path
        };
        use Direction::*;
        use Registration::*;
        assert_eq!(decided(Write, Ordinary, |_| ()), IoPath::Bounced);
        assert_eq!(decided(Read, Ordinary, |_| ()), IoPath::DirectRegister);
        assert_eq!(decided(Write, Registered, |_| ()), IoPath::Direct);
        assert_eq!(decided(Write, Ordinary, |c| c.can_bounce = false), IoPath::DirectRegister);
        assert_eq!(decided(Write, Ordinary, |c| c.method = MethodOverride::Direct), IoPath::DirectRegister);
        assert_eq!(decided(Write, Ordinary, |c| c.size = 7999), IoPath::Inline);
    }

    // [CLI-1] T-1, T, T+1 of every threshold
    #[test]
    fn decision_at_each_crossover_changes_exactly_there() {
        use Direction::*;
        use Registration::*;
        for (direction, registration, threshold, above) in [
            (Read, Registered, 1000, IoPath::Direct),
            (Read, Ordinary, 2000, IoPath::DirectRegister),
            (Write, Registered, 3000, IoPath::Direct),
        ] {
            for (size, expected) in
                [(threshold - 1, IoPath::Inline), (threshold, above), (threshold + 1, above)]
            {
                assert_eq!(decide(&circumstances(direction, size, registration)).path, expected, "{size}");
            }
        }
        // A crossover beyond the inline limit: the limit decides.
        for (size, expected) in
            [(7999, IoPath::Inline), (8000, IoPath::Inline), (8001, IoPath::DirectRegister)]
        {
            assert_eq!(decide(&circumstances(Write, size, Ordinary)).path, expected, "{size}");
        }
    }

    // [CLI-3]
    #[test]
    fn decision_without_registration_of_ordinary_memory_stages_or_stays_inline() {
        let mut c = circumstances(Direction::Read, 1 << 20, Registration::Ordinary);
        c.registers_ordinary_memory = false;
        assert_eq!(decide(&c).path, IoPath::Bounced);
        c.can_bounce = false;
        assert_eq!(decide(&c).path, IoPath::Inline);
        assert_eq!(decide(&c).reason, Reason::NothingToRegister);
    }

    // [CLI-67]
    #[test]
    fn decision_overridden_follows_the_override_at_any_size() {
        for size in [1, 1 << 30] {
            let mut c = circumstances(Direction::Write, size, Registration::Ordinary);
            for (method, expected) in [
                (MethodOverride::Inline, IoPath::Inline),
                (MethodOverride::Direct, IoPath::DirectRegister),
                (MethodOverride::Bounced, IoPath::Bounced),
            ] {
                c.method = method;
                assert_eq!(decide(&c), Decision { path: expected, reason: Reason::Override });
            }
        }
    }

    #[test]
    fn decision_about_no_bytes_is_inline_whatever_is_demanded() {
        for (method, _) in MethodOverride::ALL {
            let c = circumstances(Direction::Read, 0, Registration::Registered);
            let decision = decide(&Circumstances { method, has_eager_buffers: true, ..c });
            assert_eq!(decision, Decision { path: IoPath::Inline, reason: Reason::Empty });
        }
    }

    // [CLI-114]
    #[test]
    fn decision_about_a_batch_s_operation_goes_by_what_is_mapped() {
        for (size, path) in [(512, IoPath::Inline), (513, IoPath::Direct)] {
            let c = circumstances(Direction::Read, size, Registration::Registered);
            let decided = |is_mapped| decide(&Circumstances { form: Form::Batched { is_mapped }, ..c }).path;
            assert_eq!([decided(true), decided(false)], [path, IoPath::Inline], "{size}");
        }
    }

    #[test]
    fn decision_about_a_directory_is_direct_or_inline() {
        for (registration, path) in
            [(Registration::Registered, IoPath::Direct), (Registration::Ordinary, IoPath::Inline)]
        {
            let c = circumstances(Direction::Read, 1 << 20, registration);
            assert_eq!(decide(&Circumstances { form: Form::Directory, ..c }).path, path);
        }
    }

    #[test]
    fn decision_explained_names_size_path_and_threshold() {
        let c = circumstances(Direction::Read, 4096, Registration::Ordinary);
        let text = decide(&c).explain(&c);
        assert!(text.contains("4096") && text.contains("direct") && text.contains("2000"), "{text}");
    }
}
