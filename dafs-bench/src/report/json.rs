//! The results for programs.

use std::io::Write;

use serde::Serialize;

use crate::machine::Machine;
use crate::record::{Crossing, Outcome, Row};

#[derive(Serialize)]
struct Document<'a> {
    benchmark: &'a str,
    /// Of this program.
    version: &'a str,
    /// The command line.
    command: Vec<String>,
    machine: &'a Machine,
    options: &'a serde_json::Value,
    rows: &'a [Row],
    #[serde(skip_serializing_if = "Option::is_none")]
    crossings: Option<&'a [Crossing]>,
    /// What is to be said of them in words.
    notes: &'a [String],
}

/// Writes `outcome` as one JSON object and a newline.
pub fn write(outcome: &Outcome, machine: &Machine, mut to: impl Write) -> std::io::Result<()> {
    let document = Document {
        benchmark: &outcome.benchmark,
        version: env!("CARGO_PKG_VERSION"),
        command: std::env::args_os().map(|argument| argument.to_string_lossy().into_owned()).collect(),
        machine,
        options: &outcome.options,
        rows: &outcome.rows,
        crossings: outcome.crossings.as_deref(),
        notes: &outcome.notes,
    };
    serde_json::to_writer_pretty(&mut to, &document)?;
    to.write_all(b"\n")?;
    to.flush()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Pins;
    use crate::record::{Method, Op, Unit};

    fn written(outcome: &Outcome) -> serde_json::Value {
        let machine = Machine::describe(&Pins::default(), &[std::path::Path::new("/")]);
        let mut bytes = Vec::new();
        write(outcome, &machine, &mut bytes).unwrap();
        serde_json::from_slice(&bytes).unwrap()
    }

    #[test]
    fn row_has_exactly_the_documented_keys() {
        let row = Row {
            transport: "tcp".into(),
            op: Some(Op::Read),
            method: Some(Method::Inline),
            registered: Some(true),
            ratio: Some(1.23456),
            rounds: Some(7),
            limit_unit: Some(Unit::MibPerS),
            ..Row::default()
        };
        let notes = vec!["a word".to_owned()];
        let outcome = Outcome { benchmark: "latency".into(), rows: vec![row], notes, ..Outcome::default() };
        let value = written(&outcome);
        let mut document: Vec<&str> = value.as_object().unwrap().keys().map(String::as_str).collect();
        document.sort_unstable();
        assert_eq!(document, ["benchmark", "command", "machine", "notes", "options", "rows", "version"]);
        assert_eq!(value["version"], env!("CARGO_PKG_VERSION"));
        assert!(value["command"].as_array().is_some_and(|words| !words.is_empty()));
        let mut keys: Vec<&str> = value["rows"][0].as_object().unwrap().keys().map(String::as_str).collect();
        let mut expected = [
            "transport",
            "op",
            "method",
            "registered",
            "bytes",
            "queue_depth",
            "p50_us",
            "p99_us",
            "mib_per_s",
            "ops_per_s",
            "limit",
            "limit_value",
            "limit_unit",
            "ratio",
            "ratio_min",
            "ratio_max",
            "rounds",
        ];
        keys.sort_unstable();
        expected.sort_unstable();
        assert_eq!(keys, expected);
        assert_eq!(value["rows"][0]["method"], "inline");
        assert_eq!(value["rows"][0]["ratio"], 1.235);
        assert_eq!(value["rows"][0]["limit_unit"], "mib_per_s");
        assert!(value["rows"][0]["p50_us"].is_null());
        assert!(value.get("crossings").is_none());
        assert_eq!(value["notes"], serde_json::json!(["a word"]));
    }

    #[test]
    fn crossings_and_cpu_fraction_appear_where_given() {
        let crossing = Crossing {
            transport: "shm".into(),
            case: None,
            op: Op::Write,
            registered: false,
            inline_until_bytes: Some(2048),
            direct_from_bytes: None,
            inline_ends: false,
            measured_bytes: None,
            exported_bytes: Some(4096),
        };
        let outcome = Outcome {
            crossings: Some(vec![crossing]),
            rows: vec![Row { cpu_fraction: Some(0.5), ..Row::default() }],
            ..Outcome::default()
        };
        let value = written(&outcome);
        assert_eq!(value["crossings"][0]["exported_bytes"], 4096);
        assert!(value["crossings"][0]["measured_bytes"].is_null());
        assert_eq!(value["rows"][0]["cpu_fraction"], 0.5);
    }

    #[test]
    fn figure_that_is_not_finite_is_null() {
        let outcome =
            Outcome { rows: vec![Row { ratio: Some(f64::NAN), ..Row::default() }], ..Outcome::default() };
        assert!(written(&outcome)["rows"][0]["ratio"].is_null());
    }
}
