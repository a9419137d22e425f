//! The tables of `spec/protocol/wire.md` and the pages that follow it: each operation has them, and they are the bytes.

use std::collections::HashMap;

use dafs_proto::wire::{
    AllocateRequest, BatchNotice, BatchReply, BatchRequest, CommitReply, CommitRequest, CopyReply,
    CopyRequest, EagerBufferTerms, Explanation, HEADER_SIZE, HintRequest, ListReadReply, ListRequest,
    LockRequest, LockTestReply, LockTurn, MknodRequest, NameRequest, Opcode, OpenRequest, ReadReply,
    ReadRequest, ReaddirReply, ReaddirRequest, Recall, RemoveRequest, RenameRequest, SeekReply, SeekRequest,
    ShareReply, ShareRequest, Status, UnlockRequest, VerifyRequest, ViewDropRequest, ViewRequest,
    ViewSetRequest, WriteReply, WriteRequest,
};

use crate::vector;

/// The pages of the wire, one behind the other.
const PAGE: &str = concat!(
    include_str!("../../../spec/protocol/wire.md"),
    include_str!("../../../spec/protocol/wire-session.md"),
    include_str!("../../../spec/protocol/wire-data.md"),
    include_str!("../../../spec/protocol/wire-lists.md"),
    include_str!("../../../spec/protocol/wire-files.md"),
);
const ERRORS: &str = include_str!("../../../spec/protocol/errors.md");

/// What stands below each heading, by the anchor that links name.
fn sections() -> HashMap<String, Vec<&'static str>> {
    let mut sections: HashMap<String, Vec<&str>> = HashMap::new();
    let mut current = String::new();
    for line in PAGE.lines() {
        if let Some(heading) = line.strip_prefix('#') {
            current = heading.trim_start_matches(['#', ' ']).to_lowercase().replace(' ', "-");
            assert!(!sections.contains_key(&current), "two headings {current}");
        }
        sections.entry(current.clone()).or_default().push(line);
    }
    sections
}

/// Anchors of the pages of the wire that a text links to.
fn anchors(text: &str) -> impl Iterator<Item = &str> {
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
    let anchors = targets.filter_map(|(target, _)| target.split_once('#'));
    anchors.filter(|(page, _)| page.is_empty() || page.starts_with("wire")).map(|(_, anchor)| anchor)
}

/// The cells of the rows of the first table below a heading, without its head.
fn rows(heading: &str) -> Vec<Vec<&'static str>> {
    let sections = sections();
    let lines =
        sections.get(heading).unwrap_or_else(|| panic!("the pages of the wire have no section {heading}"));
    let table =
        lines.iter().skip_while(|line| !line.starts_with('|')).take_while(|line| line.starts_with('|'));
    let cells = |line: &&&'static str| line.trim_matches('|').split('|').map(str::trim).collect();
    table.skip(2).map(|line| cells(&line)).collect()
}

#[test]
fn opcode_has_a_table_of_each_body_and_payload() {
    let sections = sections();
    let described = |anchor: &str| {
        let lines = sections.get(anchor).unwrap_or_else(|| panic!("no section {anchor}"));
        lines.iter().any(|line| !line.starts_with('#') && !line.trim().is_empty())
    };
    for opcode in Opcode::ALL {
        let begin = format!("| 0x{:04X} | {} |", opcode.value(), opcode.name());
        let row = PAGE.lines().find(|line| line.starts_with(&begin));
        let row = row.unwrap_or_else(|| panic!("spec/protocol/wire.md has no row {begin}"));
        let cells: Vec<_> = row.split('|').map(str::trim).collect();
        let replies = if opcode.is_callback() { 0 } else { 1 };
        for cell in &cells[6..=6 + replies] {
            let (body, payload) = cell.split_once(", ").unwrap_or_else(|| panic!("{opcode:?}: {cell}"));
            assert!(body == "–" || body.starts_with('['), "{opcode:?}: the body {body}");
            assert!(!payload.is_empty(), "{opcode:?}: no word of the payload");
            anchors(cell).for_each(|anchor| assert!(described(anchor), "{opcode:?}: {anchor} is empty"));
        }
    }
}

#[test]
fn links_within_the_pages_lead_somewhere() {
    let sections = sections();
    anchors(PAGE).for_each(|anchor| assert!(sections.contains_key(anchor), "no section {anchor}"));
}

// [WIRE-1]
#[test]
fn table_of_a_body_has_its_bytes_without_gaps() {
    let bodies = [
        ("read-request", ReadRequest::HEAD_SIZE),
        ("read-reply", ReadReply::HEAD_SIZE),
        ("write-request", WriteRequest::HEAD_SIZE),
        ("write-reply", WriteReply::HEAD_SIZE),
        ("list-request", ListRequest::HEAD_SIZE),
        ("list-read-reply", ListReadReply::HEAD_SIZE),
        ("explanation", Explanation::HEAD_SIZE),
        ("view-set-request", ViewSetRequest::HEAD_SIZE),
        ("view-drop-request", ViewDropRequest::HEAD_SIZE),
        ("view-request", ViewRequest::HEAD_SIZE),
        ("batch-request", BatchRequest::HEAD_SIZE),
        ("batch-reply", BatchReply::HEAD_SIZE),
        ("batch-notice", BatchNotice::HEAD_SIZE),
        ("commit-request", CommitRequest::HEAD_SIZE),
        ("commit-reply", CommitReply::HEAD_SIZE),
        ("copy-request", CopyRequest::HEAD_SIZE),
        ("copy-reply", CopyReply::HEAD_SIZE),
        ("range-request", AllocateRequest::HEAD_SIZE),
        ("seek-request", SeekRequest::HEAD_SIZE),
        ("seek-reply", SeekReply::HEAD_SIZE),
        ("hint-request", HintRequest::HEAD_SIZE),
        ("readdir-request", ReaddirRequest::HEAD_SIZE),
        ("readdir-reply", ReaddirReply::HEAD_SIZE),
        ("open-request", OpenRequest::HEAD_SIZE),
        ("share-request", ShareRequest::HEAD_SIZE),
        ("share-reply", ShareReply::HEAD_SIZE),
        ("eager-buffer-terms", EagerBufferTerms::HEAD_SIZE),
        ("name-request", NameRequest::HEAD_SIZE),
        ("verify-request", VerifyRequest::HEAD_SIZE),
        ("lock-request", LockRequest::HEAD_SIZE),
        ("unlock-request", UnlockRequest::HEAD_SIZE),
        ("lock-test-reply", LockTestReply::HEAD_SIZE),
        ("lock-turn", LockTurn::HEAD_SIZE),
        ("recall", Recall::HEAD_SIZE),
        ("remove-request", RemoveRequest::HEAD_SIZE),
        ("mknod-request", MknodRequest::HEAD_SIZE),
        ("rename-request", RenameRequest::HEAD_SIZE),
        ("link-request", RenameRequest::HEAD_SIZE),
        ("notice", HEADER_SIZE + 4),
        ("description-of-a-view", HEADER_SIZE + 8),
        ("node-of-a-view", HEADER_SIZE + 16),
        ("header", 2 * HEADER_SIZE),
    ];
    for (heading, head_size) in bodies {
        let end = rows(heading).iter().fold(0, |at, row| {
            let [offset, size] = [row[0], row[1]].map(|cell| cell.parse::<usize>().unwrap());
            assert_eq!(offset, at, "{heading}: {row:?}");
            offset + size
        });
        assert_eq!(HEADER_SIZE + end, head_size, "{heading}");
    }
}

// [WIRE-37]
#[test]
fn table_of_a_structure_has_a_row_of_each_field() {
    for (heading, name, at) in [
        ("hello", "hello request payload", 0),
        ("helloreply", "hello reply payload", 0),
        ("authenticate", "authenticate request payload", 0),
        ("authenticatereply", "authenticate reply payload", 0),
        ("welcome", "authenticate reply of a cluster payload", 3),
        ("limitsreply", "limits reply payload", 0),
        ("thresholds", "limits reply payload", 1),
        ("statistics", "statistics reply payload", 2),
        ("mountreply", "mount reply payload", 0),
        ("attributes", "open reply payload", 0),
        ("setattributes", "setattr request payload", 5),
        ("fsstatistics", "statfs reply payload", 0),
    ] {
        let rows = rows(heading);
        rows.iter().enumerate().for_each(|(index, row)| assert_eq!(row[0], index.to_string(), "{heading}"));
        // A short array says its length in the same byte, a longer one in two that follow.
        let first = vector(name)[at];
        let count = if first & 0xf0 == 0x90 { first & 0x0f } else { first };
        assert_eq!(rows.len(), usize::from(count), "{heading}");
    }
}

// [ERR-2]
#[test]
fn status_has_the_number_of_its_row() {
    let rows = ERRORS.lines().filter_map(|line| {
        let mut cells = line.strip_prefix("| ")?.split(" | ");
        let (number, name) = (cells.next()?, cells.next()?);
        let number = match number.strip_prefix("0x") {
            Some(digits) => u32::from_str_radix(digits, 16),
            None => number.parse(),
        };
        Some((number.ok()?, name))
    });
    let known: Vec<_> = Status::ALL.iter().map(|status| (status.value(), status.name().unwrap())).collect();
    assert_eq!(rows.collect::<Vec<_>>(), known);
}
