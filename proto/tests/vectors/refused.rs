//! `spec/vectors/refused.txt`: what is not taken, and why.

use std::collections::HashSet;

use dafs_proto::wire::{Flags, Header, Opcode, decode_message_pack};

use crate::decode::decode;
use crate::from_hex;

const REFUSED: &str = include_str!("../../../spec/vectors/refused.txt");

struct Case {
    name: &'static str,
    head: Vec<u8>,
    payload: Vec<u8>,
    outcome: &'static str,
}

fn cases() -> Vec<Case> {
    let blocks = REFUSED.split("\n\n").filter(|block| block.contains("\nhead: "));
    let cases = blocks.map(|block| {
        let block = block.trim();
        let field = |key: &str| block.lines().find_map(|line| line.strip_prefix(key));
        let bytes = |key: &str| field(key).map(from_hex).unwrap_or_default();
        Case {
            name: block.lines().next().unwrap_or_default(),
            head: bytes("head: "),
            payload: bytes("payload: "),
            outcome: block.lines().last().unwrap_or_default(),
        }
    });
    cases.collect()
}

// [WIRE-2] [WIRE-4] [WIRE-7] [WIRE-11] [WIRE-137] [WIRE-138] [WIRE-139] [WIRE-142] [WIRE-12] [WIRE-24] [WIRE-25] [WIRE-31]
// [WIRE-32] [WIRE-33] [WIRE-34] [WIRE-3] [WIRE-26] [WIRE-43] [WIRE-44] [WIRE-54] [WIRE-132] [WIRE-133] [LIST-7] [BATCH-2]
// [VIEW-4]
#[test]
fn message_that_is_to_be_refused_is_refused_for_its_reason() {
    let cases = cases();
    assert!(cases.len() > 140, "{} cases", cases.len());
    for Case { name, head, payload, outcome } in cases {
        match decode(&head, &payload) {
            Ok(header) => panic!("{name}: {header:?} is taken"),
            Err(problem) => assert_eq!(problem.outcome(), outcome, "{name}: {problem:?}"),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Direction {
    Request,
    Reply,
    Callback,
}

fn direction(header: &Header) -> Direction {
    match (header.flags.contains(Flags::REPLY), header.flags.contains(Flags::CALLBACK)) {
        (true, _) => Direction::Reply,
        (false, true) => Direction::Callback,
        (false, false) => Direction::Request,
    }
}

#[test]
fn every_operation_has_a_message_that_is_refused_in_each_direction() {
    let found: HashSet<(Opcode, Direction)> = cases()
        .iter()
        .filter_map(|case| {
            let header = Header::decode(&case.head, u32::try_from(case.payload.len()).ok()?).ok()?.0;
            Some((header.opcode, direction(&header)))
        })
        .collect();
    for opcode in Opcode::ALL {
        let directions = match opcode.is_callback() {
            true => &[Direction::Callback][..],
            false => &[Direction::Request, Direction::Reply],
        };
        for direction in directions {
            let is_there = found.contains(&(*opcode, *direction));
            assert!(is_there, "spec/vectors/refused.txt has no {opcode:?} {direction:?}");
        }
    }
}

// [WIRE-53] [WIRE-44]
#[test]
fn longer_form_of_a_number_is_taken_up_to_its_type() {
    for form in [&[5][..], &[0xcc, 5], &[0xcd, 0, 5], &[0xce, 0, 0, 0, 5], &[0xcf, 0, 0, 0, 0, 0, 0, 0, 5]] {
        assert_eq!(decode_message_pack::<u16>("number", form), Ok(5), "{form:x?}");
    }
    assert!(decode_message_pack::<u16>("number", &[0xce, 0, 1, 0, 0]).is_err());
}
