//! How data travels whose memory is in several pieces: the methods of Wu, Wyckoff and Panda ("Supporting Efficient
//! Noncontiguous Access in PVFS over InfiniBand", 2003, §4), and the choice between them.

use dafs_proto::wire::GatherSwitches;

use crate::method::io_path::{
    Circumstances, Decision, IoPath, Pieces, Reason, Registration, decide_contiguous, direct,
};

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
    Auto,
}

impl Noncontiguous {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Multiple, Self::Pack, Self::Gather, Self::Auto];

    /// The name in settings and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Multiple => "multiple",
            Self::Pack => "pack",
            Self::Gather => "gather",
            Self::Auto => "auto",
        }
    }
}

impl std::str::FromStr for Noncontiguous {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|method| method.name() == name);
        found.ok_or_else(|| format!("{name:?} is not a method: write multiple, pack, gather or auto"))
    }
}

pub(crate) fn decide_pieces(c: &Circumstances, pieces: &Pieces) -> Decision {
    let average = average(c, pieces);
    let reason = Reason::Noncontiguous { method: pieces.method.name() };
    match pieces.method {
        Noncontiguous::Multiple => {
            Decision { reason, ..decide_contiguous(&Circumstances { size: average, ..*c }) }
        }
        Noncontiguous::Pack => Decision { path: pack(c), reason },
        Noncontiguous::Gather => Decision { path: direct(c, false), reason },
        Noncontiguous::Auto => {
            let switch = switch(c, pieces.switches);
            let (gathers, reason) = match pieces.learned {
                Some(true) => (true, Reason::LearnedGather),
                Some(false) => (false, Reason::LearnedPack),
                None if average < u64::from(switch) => (false, Reason::BelowSwitch { switch }),
                None => (true, Reason::FromSwitch { switch }),
            };
            Decision { path: if gathers { direct(c, false) } else { pack(c) }, reason }
        }
    }
}

/// Where both packing and gathering are open, so that what was learned counts: whether the server's switches would gather.
pub(crate) fn open_choice(c: &Circumstances, pieces: &Pieces) -> Option<bool> {
    let is_open = pieces.method == Noncontiguous::Auto && pack(c) != direct(c, false);
    is_open.then(|| average(c, pieces) >= u64::from(switch(c, pieces.switches)))
}

/// Bytes of a piece, on average.
fn average(c: &Circumstances, pieces: &Pieces) -> u64 {
    c.size / (pieces.count.max(1) as u64)
}

/// Bytes of a piece from which gathering pays. Where nothing was measured: registered memory is gathered, other memory packed.
fn switch(c: &Circumstances, switches: Option<GatherSwitches>) -> u32 {
    let Some(from) = switches else { return [0, u32::MAX][c.registration as usize] };
    let reads = [from.read_registered, from.read_unregistered];
    [reads, [from.write_registered, from.write_unregistered]][c.direction as usize][c.registration as usize]
}

/// Through the message, or through registered buffers of the library: as memory that is registered already.
fn pack(c: &Circumstances) -> IoPath {
    let contiguous = Circumstances { registration: Registration::Registered, ..*c };
    match decide_contiguous(&contiguous).path {
        IoPath::Inline => IoPath::Inline,
        _ if c.can_bounce => IoPath::Bounced,
        _ => IoPath::Inline,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::method::io_path::Direction;
    use crate::method::io_path::{Form, MethodOverride, decide};
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
            has_eager_buffers: false,
            can_bounce: true,
            cuts_inline: false,
            bounce_overlaps: false,
            refined: None,
            form: Form::Contiguous,
        }
    }

    fn decided(
        c: &Circumstances,
        method: Noncontiguous,
        count: usize,
        switches: Option<GatherSwitches>,
    ) -> Decision {
        let form = Form::Pieces(Pieces { count, method, switches, learned: None });
        decide(&Circumstances { form, ..*c })
    }

    const SWITCHES: GatherSwitches = GatherSwitches {
        read_registered: 100,
        read_unregistered: 200,
        write_registered: 300,
        write_unregistered: 400,
    };

    // [LIST-10] T-1, T, T+1 of each switch
    #[test]
    fn auto_changes_from_packing_to_gathering_exactly_at_each_switch() {
        use Direction::*;
        use Registration::*;
        for (direction, registration, switch, gathered) in [
            (Read, Registered, 100, IoPath::Direct),
            (Read, Ordinary, 200, IoPath::DirectRegister),
            (Write, Registered, 300, IoPath::Direct),
            (Write, Ordinary, 400, IoPath::DirectRegister),
        ] {
            for (average, expected) in
                [(switch - 1, IoPath::Bounced), (switch, gathered), (switch + 1, gathered)]
            {
                let c = circumstances(direction, 128 * average, registration);
                let decision = decided(&c, Noncontiguous::Auto, 128, Some(SWITCHES));
                assert_eq!(decision.path, expected, "{direction:?} {registration:?} {average}");
            }
        }
    }

    #[test]
    fn pack_uses_messages_below_the_crossover_and_buffers_above() {
        for (size, path) in [(3999, IoPath::Inline), (4000, IoPath::Bounced), (1 << 20, IoPath::Bounced)] {
            let c = circumstances(Direction::Read, size, Registration::Ordinary);
            assert_eq!(decided(&c, Noncontiguous::Pack, 7, None).path, path, "{size}");
            let without = Circumstances { can_bounce: false, ..c };
            assert_eq!(decided(&without, Noncontiguous::Pack, 7, None).path, IoPath::Inline);
        }
    }

    #[test]
    fn gather_registers_what_is_not_and_packs_what_cannot_be() {
        let c = circumstances(Direction::Write, 100, Registration::Ordinary);
        let path = |c: &Circumstances| decided(c, Noncontiguous::Gather, 7, None).path;
        assert_eq!(path(&c), IoPath::DirectRegister);
        assert_eq!(path(&Circumstances { registration: Registration::Registered, ..c }), IoPath::Direct);
        assert_eq!(path(&Circumstances { registers_ordinary_memory: false, ..c }), IoPath::Bounced);
    }

    #[test]
    fn multiple_decides_for_the_size_of_one_piece() {
        for (pieces, path) in [(2, IoPath::DirectRegister), (3, IoPath::Inline)] {
            let c = circumstances(Direction::Read, 8000, Registration::Ordinary);
            let decision = decided(&c, Noncontiguous::Multiple, pieces, None);
            assert_eq!(decision.path, path, "{pieces}");
        }
    }

    // [LIST-13]
    #[test]
    fn auto_goes_by_what_was_learned_where_there_is_a_choice() {
        let c = circumstances(Direction::Read, 1 << 20, Registration::Registered);
        for (learned, path) in [(true, IoPath::Direct), (false, IoPath::Bounced)] {
            for count in [2, 1 << 20] {
                let pieces =
                    Pieces { count, method: Noncontiguous::Auto, switches: None, learned: Some(learned) };
                assert_eq!(decide(&Circumstances { form: Form::Pieces(pieces), ..c }).path, path);
                assert_eq!(open_choice(&c, &pieces), Some(true));
                let nothing = Circumstances { registration: Registration::Ordinary, can_bounce: false, ..c };
                let nothing = Circumstances { registers_ordinary_memory: false, ..nothing };
                assert_eq!(open_choice(&nothing, &pieces), None);
            }
        }
    }

    #[test]
    fn auto_without_measured_switches_gathers_registered_memory_only() {
        for (registration, path) in
            [(Registration::Registered, IoPath::Direct), (Registration::Ordinary, IoPath::Bounced)]
        {
            let c = circumstances(Direction::Read, 1 << 20, registration);
            assert_eq!(decided(&c, Noncontiguous::Auto, 2, None).path, path);
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
