//! How data travels whose memory is in several pieces: the methods of Wu, Wyckoff and Panda ("Supporting Efficient
//! Noncontiguous Access in PVFS over InfiniBand", 2003, §4), and the choice between them.

use dafs_proto::wire::GatherSwitches;

use crate::method::io_path::{
    Circumstances, Decision, Direction, IoPath, Reason, Registration, decide, direct,
};
use crate::method::learned::{Learned, Trial};

/// How the data of transfers travels whose memory is in several pieces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Noncontiguous {
    /// A request for each piece that is contiguous in the file and in memory.
    Multiple,
    /// The client copies to or from one registered buffer of the library, or the message; one contiguous transfer moves it.
    Pack,
    /// RDMA of the server gathers or scatters the pieces. Where memory cannot be registered, as [`Noncontiguous::Pack`].
    Gather,
    /// `Pack` where the pieces are small, else `Gather`: by the sizes that the server measured and exports
    /// ([`crate::Agreed::gather`]).
    #[default]
    Hybrid,
}

impl Noncontiguous {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Multiple, Self::Pack, Self::Gather, Self::Hybrid];

    /// The name in settings and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Multiple => "multiple",
            Self::Pack => "pack",
            Self::Gather => "gather",
            Self::Hybrid => "hybrid",
        }
    }
}

impl std::str::FromStr for Noncontiguous {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|method| method.name() == name);
        found.ok_or_else(|| format!("{name:?} is no method: multiple, pack, gather or hybrid"))
    }
}

/// Decides how the data of a transfer travels whose memory is in `segments` pieces, at least one.
pub(crate) fn decide_noncontiguous(
    c: &Circumstances,
    method: Noncontiguous,
    segments: usize,
    switches: Option<GatherSwitches>,
) -> Decision {
    let average = c.size / (segments.max(1) as u64);
    match method {
        Noncontiguous::Multiple => Decision {
            reason: Reason::Noncontiguous { method: method.name() },
            ..decide(&Circumstances { size: average, ..*c })
        },
        Noncontiguous::Pack => {
            Decision { path: pack(c), reason: Reason::Noncontiguous { method: method.name() } }
        }
        Noncontiguous::Gather => {
            Decision { path: direct(c, false), reason: Reason::Noncontiguous { method: method.name() } }
        }
        Noncontiguous::Hybrid => {
            let switch = switch(c, switches);
            match average < u64::from(switch) {
                true => Decision { path: pack(c), reason: Reason::BelowSwitch { switch } },
                false => Decision { path: direct(c, false), reason: Reason::FromSwitch { switch } },
            }
        }
    }
}

/// As [`decide_noncontiguous`] for hybrid, after what this session has learned; and the trial that the transfer is.
pub(crate) fn decide_hybrid(
    c: &Circumstances,
    segments: usize,
    switches: Option<GatherSwitches>,
    learned: &mut Learned,
    blocking: bool,
) -> (IoPath, Option<Trial>) {
    let prior = decide_noncontiguous(c, Noncontiguous::Hybrid, segments, switches);
    let (packed, gathered) = (pack(c), direct(c, false));
    if packed == gathered {
        return (prior.path, None);
    }
    let gathers = matches!(prior.reason, Reason::FromSwitch { .. });
    let kind = (c.direction, c.registration);
    let (gathers, trial) = learned.choose(kind, (c.size, segments), gathers, blocking);
    (if gathers { gathered } else { packed }, trial)
}

/// Bytes of a piece from which gathering pays. Where nothing was measured: registered memory is gathered, other memory packed.
fn switch(c: &Circumstances, switches: Option<GatherSwitches>) -> u32 {
    match (switches, c.direction, c.registration) {
        (Some(from), Direction::Read, Registration::Registered) => from.read_registered,
        (Some(from), Direction::Read, Registration::Ordinary) => from.read_unregistered,
        (Some(from), Direction::Write, Registration::Registered) => from.write_registered,
        (Some(from), Direction::Write, Registration::Ordinary) => from.write_unregistered,
        (None, _, Registration::Registered) => 0,
        (None, _, Registration::Ordinary) => u32::MAX,
    }
}

/// Through the message, or through registered buffers of the library: as memory that is registered already.
fn pack(c: &Circumstances) -> IoPath {
    let contiguous = Circumstances { registration: Registration::Registered, ..*c };
    match decide(&contiguous).path {
        IoPath::Inline => IoPath::Inline,
        _ if c.can_stage => IoPath::Staged,
        _ => IoPath::Inline,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::method::io_path::MethodOverride;
    use dafs_proto::wire::{Crossovers, Thresholds};

    fn circumstances(direction: Direction, size: u64, registration: Registration) -> Circumstances {
        Circumstances {
            direction,
            size,
            registration,
            thresholds: Thresholds {
                read_inline_max: 8000,
                write_inline_max: 8000,
                crossovers: Crossovers {
                    read_registered: 4000,
                    read_unregistered: 4000,
                    write_registered: 4000,
                    write_unregistered: 4000,
                },
            },
            method: MethodOverride::Auto,
            inline_max: 8000,
            registers_ordinary_memory: true,
            has_lanes: false,
            can_stage: true,
            cuts_inline: false,
            staging_overlaps: false,
        }
    }

    const SWITCHES: GatherSwitches = GatherSwitches {
        read_registered: 100,
        read_unregistered: 200,
        write_registered: 300,
        write_unregistered: 400,
    };

    // [LIST-10] T-1, T, T+1 of each switch
    #[test]
    fn hybrid_changes_from_packing_to_gathering_exactly_at_each_switch() {
        use Direction::*;
        use Registration::*;
        for (direction, registration, switch, gathered) in [
            (Read, Registered, 100, IoPath::Direct),
            (Read, Ordinary, 200, IoPath::DirectRegister),
            (Write, Registered, 300, IoPath::Direct),
            (Write, Ordinary, 400, IoPath::DirectRegister),
        ] {
            for (average, expected) in
                [(switch - 1, IoPath::Staged), (switch, gathered), (switch + 1, gathered)]
            {
                let c = circumstances(direction, 128 * average, registration);
                let decision = decide_noncontiguous(&c, Noncontiguous::Hybrid, 128, Some(SWITCHES));
                assert_eq!(decision.path, expected, "{direction:?} {registration:?} {average}");
            }
        }
    }

    #[test]
    fn pack_goes_by_the_message_below_the_crossover_and_by_registered_buffers_above() {
        for (size, path) in [(3999, IoPath::Inline), (4000, IoPath::Staged), (1 << 20, IoPath::Staged)] {
            let c = circumstances(Direction::Read, size, Registration::Ordinary);
            assert_eq!(decide_noncontiguous(&c, Noncontiguous::Pack, 7, None).path, path, "{size}");
            let without = Circumstances { can_stage: false, ..c };
            assert_eq!(decide_noncontiguous(&without, Noncontiguous::Pack, 7, None).path, IoPath::Inline);
        }
    }

    #[test]
    fn gather_registers_what_is_not_and_packs_what_cannot_be() {
        let c = circumstances(Direction::Write, 100, Registration::Ordinary);
        let path = |c: &Circumstances| decide_noncontiguous(c, Noncontiguous::Gather, 7, None).path;
        assert_eq!(path(&c), IoPath::DirectRegister);
        assert_eq!(path(&Circumstances { registration: Registration::Registered, ..c }), IoPath::Direct);
        assert_eq!(path(&Circumstances { registers_ordinary_memory: false, ..c }), IoPath::Staged);
    }

    #[test]
    fn multiple_decides_for_the_size_of_one_piece() {
        for (pieces, path) in [(2, IoPath::DirectRegister), (3, IoPath::Inline)] {
            let c = circumstances(Direction::Read, 8000, Registration::Ordinary);
            let decision = decide_noncontiguous(&c, Noncontiguous::Multiple, pieces, None);
            assert_eq!(decision.path, path, "{pieces}");
        }
    }

    #[test]
    fn hybrid_without_measured_switches_gathers_registered_memory_only() {
        for (registration, path) in
            [(Registration::Registered, IoPath::Direct), (Registration::Ordinary, IoPath::Staged)]
        {
            let c = circumstances(Direction::Read, 1 << 20, registration);
            assert_eq!(decide_noncontiguous(&c, Noncontiguous::Hybrid, 2, None).path, path);
        }
    }

    #[test]
    fn noncontiguous_names_are_read_as_they_are_written() {
        for method in Noncontiguous::ALL {
            assert_eq!(method.name().parse(), Ok(method));
        }
        assert!("both".parse::<Noncontiguous>().is_err());
    }
}
