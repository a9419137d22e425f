//! Runs tshark with the dissector, and reads what it makes of a capture.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use crate::capture::{Capture, HEADERS_SIZE};

const DISSECTOR: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../spec/wireshark/dafs.lua");

/// Severities as Wireshark numbers them.
pub(crate) const NOTE: u32 = 0x0040_0000;
pub(crate) const WARNING: u32 = 0x0060_0000;
pub(crate) const ERROR: u32 = 0x0080_0000;

/// An item of a packet's tree.
#[derive(Debug, Default)]
pub(crate) struct Item {
    pub(crate) name: String,
    /// The line that a user sees.
    pub(crate) text: String,
    /// The value.
    pub(crate) value: String,
    pub(crate) at: usize,
    pub(crate) size: usize,
    pub(crate) children: Vec<Item>,
}

/// Something that the dissector remarks.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Remark {
    pub(crate) severity: u32,
    pub(crate) text: String,
}

impl Item {
    /// All items below this one, and this one first.
    pub(crate) fn all(&self) -> Vec<&Item> {
        let mut all = vec![self];
        self.children.iter().for_each(|child| all.extend(child.all()));
        all
    }

    /// Values of a field, in order.
    pub(crate) fn values(&self, name: &str) -> Vec<&str> {
        self.all().into_iter().filter(|item| item.name == name).map(|item| item.value.as_str()).collect()
    }

    /// The only value of a field.
    #[track_caller]
    pub(crate) fn value(&self, name: &str) -> &str {
        let values = self.values(name);
        assert_eq!(values.len(), 1, "{name} in {}", self.lines());
        values[0]
    }

    /// The value of a field, where there is exactly one.
    pub(crate) fn one(&self, name: &str) -> Option<&str> {
        let values = self.values(name);
        (values.len() == 1).then(|| values[0])
    }

    pub(crate) fn number(&self, name: &str) -> u64 {
        number(self.value(name))
    }

    /// Messages of the protocol.
    pub(crate) fn messages(&self) -> Vec<&Item> {
        self.all()
            .into_iter()
            .filter(|item| item.name == "dafs" && item.text.starts_with("Message: "))
            .collect()
    }

    /// Messages, and frames that carry none: what they are.
    pub(crate) fn titles(&self) -> Vec<&str> {
        let title = |item: &'_ &Item| item.name == "dafs" && item.text.starts_with("dafs");
        self.all().into_iter().filter(title).map(|item| item.text.as_str()).collect()
    }

    /// Remarks of at least this severity.
    pub(crate) fn remarks(&self, severity: u32) -> Vec<Remark> {
        let remarks = self.all().into_iter().filter(|item| item.name == "_ws.expert").map(|item| Remark {
            severity: number(item.value("_ws.expert.severity")) as u32,
            text: item.value("_ws.expert.message").to_owned(),
        });
        remarks.filter(|remark| remark.severity >= severity).collect()
    }

    /// The tree as a user sees it; of a packet only what the dissector has made.
    pub(crate) fn lines(&self) -> String {
        let is_packet = self.name.is_empty() && self.text.is_empty();
        let shown = self.children.iter().filter(|child| !is_packet || child.name == "dafs");
        let below: Vec<String> = shown.map(Item::lines).collect();
        format!(
            "{}\n{}",
            self.text,
            below.concat().lines().map(|line| format!("  {line}\n")).collect::<String>()
        )
    }

    /// Bytes of the first `size` bytes of data that no field of the dissector has.
    pub(crate) fn unnamed(&self, size: usize) -> BTreeSet<usize> {
        let mut unnamed: BTreeSet<usize> = (HEADERS_SIZE..HEADERS_SIZE + size).collect();
        // A container has no value; what it has below it counts.
        let is_field = |item: &&Item| {
            let has_value = !item.value.is_empty() || item.children.is_empty();
            item.name.starts_with("dafs.") && item.name != "dafs.rest" && has_value
        };
        for item in self.all().into_iter().filter(is_field) {
            (item.at..item.at + item.size).for_each(|at| {
                unnamed.remove(&at);
            });
        }
        unnamed
    }
}

/// `0x1f` or `31`.
pub(crate) fn number(text: &str) -> u64 {
    let number = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    number.unwrap_or_else(|_| panic!("{text:?} is no number"))
}

/// Dissects a capture: an item for each packet.
pub(crate) fn dissect(capture: &Capture) -> Vec<Item> {
    dissect_by(capture, &[&format!("-Xlua_script:{DISSECTOR}")], |_| ())
}

/// As [`dissect`], with the script where a user's plugins are.
pub(crate) fn dissect_installed(capture: &Capture) -> Vec<Item> {
    dissect_by(capture, &[], |home| {
        let plugins = home.join(".local/lib/wireshark/plugins");
        std::fs::create_dir_all(&plugins).expect("a directory");
        std::fs::copy(DISSECTOR, plugins.join("dafs.lua")).expect("a copy of the script");
    })
}

fn dissect_by(capture: &Capture, arguments: &[&str], prepare: impl FnOnce(&Path)) -> Vec<Item> {
    let directory = tempfile::tempdir().expect("a temporary directory");
    prepare(directory.path());
    let path = directory.path().join("test.pcap");
    capture.save(&path);
    let output = Command::new("tshark")
        // No names of hosts. Twice, as Wireshark does: requests then know their replies.
        .args(["-n", "-2", "-T", "pdml"])
        .args(arguments)
        .arg("-r")
        .arg(&path)
        // The dissector may be installed here, too.
        .env("HOME", directory.path())
        .env("XDG_CONFIG_HOME", directory.path())
        .output()
        .expect("tshark runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "tshark: {errors}");
    assert!(!errors.contains("Lua"), "tshark: {errors}");
    let text = String::from_utf8_lossy(&output.stdout);
    let at = text.find("Lua Error").unwrap_or(text.len());
    assert_eq!(at, text.len(), "{}", &text[at..].lines().next().unwrap_or_default());
    packets(&text)
}

/// Reads PDML, which tshark writes with one element a line.
fn packets(text: &str) -> Vec<Item> {
    let mut open: Vec<Item> = Vec::new();
    let mut packets = Vec::new();
    for line in text.lines().map(str::trim) {
        if line == "<packet>" {
            open.push(Item::default());
        } else if line.starts_with("<proto ") || line.starts_with("<field ") {
            let item = Item {
                name: attribute(line, "name"),
                text: attribute(line, "showname"),
                value: attribute(line, "show"),
                at: attribute(line, "pos").parse().unwrap_or_default(),
                size: attribute(line, "size").parse().unwrap_or_default(),
                children: Vec::new(),
            };
            match open.last_mut().filter(|_| line.ends_with("/>")) {
                Some(parent) => parent.children.push(item),
                None => open.push(item),
            }
        } else if matches!(line, "</proto>" | "</field>" | "</packet>") {
            let item = open.pop().expect("an element that began");
            match open.last_mut() {
                Some(parent) => parent.children.push(item),
                None => packets.push(item),
            }
        }
    }
    assert!(open.is_empty(), "PDML ends within an element");
    packets
}

fn attribute(line: &str, name: &str) -> String {
    let Some((_, rest)) = line.split_once(&format!(" {name}=\"")) else { return String::new() };
    let value = rest.split('"').next().unwrap_or_default();
    value
        .replace("&quot;", "\"")
        .replace("&lt;", "<")
        .replace("&gt;", ">")
        .replace("&apos;", "'")
        .replace("&amp;", "&")
}

#[test]
fn pdml_is_read_as_a_tree() {
    let text = "<pdml>\n<packet>\n<proto name=\"a\" showname=\"A &quot;b&quot;\" size=\"9\" pos=\"3\">\n\
                <field name=\"a.x\" showname=\"x: 5\" size=\"1\" pos=\"4\" show=\"5\" value=\"05\"/>\n</proto>\n</packet>\n</pdml>\n";
    let packets = packets(text);
    assert_eq!((packets.len(), packets[0].number("a.x")), (1, 5));
    let item = &packets[0].children[0];
    assert_eq!((item.text.as_str(), item.at, item.size), ("A \"b\"", 3, 9));
}
