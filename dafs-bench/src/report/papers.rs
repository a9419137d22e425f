//! The axes of the report of `compare`: what is shown, what the papers found, and what this run says to it.

use crate::record::{Op, Row};
use crate::report::figure;

/// One axis.
pub(crate) struct AxisText {
    /// The value of `case` in its rows.
    pub(crate) case: &'static str,
    pub(crate) title: &'static str,
    pub(crate) unit: &'static str,
    pub(crate) what: &'static str,
    pub(crate) papers: &'static str,
    /// The figure of a row.
    pub(crate) value: fn(&Row) -> Option<f64>,
    /// `low` and `high` of the row are about that figure.
    pub(crate) has_interval: bool,
    /// What this run says to the papers.
    pub(crate) here: fn(&[&Row]) -> Option<String>,
}

/// In the order of the report.
pub(crate) const AXES: [AxisText; 6] = [
    AxisText {
        case: "latency",
        title: "Latency",
        unit: "µs; less is better",
        what: "The time of one read or write after the other, of a file in the server's page cache.",
        papers: "A read of 4 bytes through MPI-IO takes 75 µs on DAFS over VIA, 102 (sequential) or 310 µs (random) on NFS over UDP, \
        and 1.5 or \
                 26 µs on the local file system (MPI-IO on DAFS over VIA on cLAN, Figure 6). Four bytes one way take 8.1 µs natively \
                 over InfiniBand \
                 and 40.1 µs by TCP/IP on the same network (PVFS over InfiniBand, Table 1).",
        value: |row| row.p50_us,
        has_interval: true,
        here: |rows| {
            let of = |who| figure_of(rows, who, Op::Read, 4, |row| row.p50_us);
            sentence(
                "a read of 4 bytes takes",
                "µs",
                &[
                    ("local", of("local")),
                    ("sockets", of("sockets")),
                    ("tcp", of("tcp")),
                    ("shm", of("shm")),
                    ("verbs", of("verbs")),
                    ("nfs", of("nfs")),
                ],
            )
        },
    },
    AxisText {
        case: "bandwidth",
        title: "Bandwidth",
        unit: "MiB/s; more is better",
        what: "Transfers of 1 MiB, sixteen at once. Local calls and sockets go one after the other in one thread.",
        papers: "Reads on DAFS over VIA are 1.6 to 2.2 times as fast as on NFS over UDP, writes 1.8 to 2.4 times below 2 KiB and 4.4 to \
        5.6 times \
                 above; large writes come close to the local file system (MPI-IO on DAFS, Figure 7). PVFS natively over InfiniBand \
                 offers three \
                 times the bandwidth of PVFS over TCP/IP on the same network (PVFS over InfiniBand, Figure 6).",
        value: |row| row.mib_per_s,
        has_interval: true,
        here: |rows| {
            let of = |who: &str, op: Op| figure_of(rows, who, op, 1 << 20, |row| row.mib_per_s);
            against_nfs(|who| of(who, Op::Read), |who| of(who, Op::Write))
        },
    },
    AxisText {
        case: "bandwidth",
        title: "CPU of the client",
        unit: "% of one CPU; less is better",
        what: "What the client spends during the transfers of 1 MiB above. The table has nanoseconds for an operation and for a MiB of \
            all axes.",
        papers: "CPU utilization of the clients falls from 91 % with PVFS over TCP/IP to 1.5 % with PVFS natively over InfiniBand, where \
                 the network adapter moves the data (PVFS over InfiniBand, Figure 7).",
        value: |row| row.cpu_percent.filter(|_| row.cpu.is_some_and(|cpu| cpu.client_cpu_ns.is_some())),
        has_interval: false,
        here: |rows| {
            let of = |who| figure_of(rows, who, Op::Read, 1 << 20, |row| row.cpu_percent);
            let said = sentence(
                "reads take of a CPU",
                "%",
                &[
                    ("local", of("local")),
                    ("tcp", of("tcp")),
                    ("shm", of("shm")),
                    ("verbs", of("verbs")),
                    ("nfs", of("nfs")),
                ],
            )?;
            Some(format!(
                "{said} Over loopback TCP the kernel copies the data for the client; over shm the server does."
            ))
        },
    },
    AxisText {
        case: "rate",
        title: "Rate of small reads",
        unit: "operations a second; more is better",
        what: "Reads of 4 KiB in random order, one, sixteen and sixty-four at once. Local calls go one after the other in one thread.",
        papers: "They have no figure of this.",
        value: |row| row.ops_per_s,
        has_interval: true,
        here: |_| None,
    },
    AxisText {
        case: "names",
        title: "Metadata",
        unit: "µs; less is better",
        what: "The time of one call after the other on names of small files: making, with open and close; attributes; removing.",
        papers: "They have no figure of this.",
        value: |row| row.p50_us,
        has_interval: true,
        here: |_| None,
    },
    AxisText {
        case: "overlap",
        title: "Overlap with computation",
        unit: "time of both together / time of the transfer alone; 1 is perfect, 2 is none",
        what: "One transfer of 64 KiB is in flight while the client computes for as long as the transfer takes alone (a CPU fraction of \
        0.5). \
               The local file system and plain sockets have no call that begins a transfer and returns.",
        papers: "The bandwidth on DAFS stays almost the same up to a CPU fraction of 0.5: transfers and computation overlap perfectly. \
        On NFS and \
                 the local file system nothing overlaps (MPI-IO on DAFS, Figure 8).",
        value: |row| row.ratio,
        has_interval: true,
        here: |rows| {
            let of = |who| figure_of(rows, who, Op::Read, 64 << 10, |row| row.ratio);
            sentence(
                "reads take, of the time alone,",
                "times",
                &[("tcp", of("tcp")), ("shm", of("shm")), ("verbs", of("verbs")), ("nfs", of("nfs"))],
            )
        },
    },
];

fn figure_of(rows: &[&Row], who: &str, op: Op, bytes: usize, value: fn(&Row) -> Option<f64>) -> Option<f64> {
    let row = rows.iter().find(|row| row.transport == who && row.op == Some(op) && row.bytes == bytes)?;
    value(row)
}

fn sentence(what: &str, unit: &str, figures: &[(&str, Option<f64>)]) -> Option<String> {
    let known =
        figures.iter().filter_map(|(who, value)| Some(format!("{} {unit} on {who}", figure((*value)?))));
    let known: Vec<String> = known.collect();
    (!known.is_empty()).then(|| format!("{what} {}.", known.join(", ")))
}

fn against_nfs(read: impl Fn(&str) -> Option<f64>, write: impl Fn(&str) -> Option<f64>) -> Option<String> {
    let one = |who: &str| {
        let (read, write) = (read(who)? / read("nfs")?, write(who)? / write("nfs")?);
        Some(format!("over {who} reads are {read:.1} and writes {write:.1} times as fast as on NFS"))
    };
    let known: Vec<String> = ["tcp", "shm", "verbs"].into_iter().filter_map(one).collect();
    (!known.is_empty()).then(|| format!("{}.", known.join("; ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentence_names_those_that_were_measured() {
        assert_eq!(
            sentence("it takes", "µs", &[("tcp", Some(20.0)), ("nfs", None)]).as_deref(),
            Some("it takes 20.00 µs on tcp.")
        );
        assert_eq!(sentence("it takes", "µs", &[("nfs", None)]), None);
    }

    #[test]
    fn comparison_with_nfs_needs_nfs() {
        let rate = |who: &str| Some(if who == "nfs" { 100.0 } else { 250.0 });
        let said = against_nfs(rate, rate).unwrap();
        assert!(
            said.starts_with("over tcp reads are 2.5 and writes 2.5 times as fast as on NFS; over shm"),
            "{said}"
        );
        assert_eq!(against_nfs(|who| (who != "nfs").then_some(1.0), rate), None);
    }
}
