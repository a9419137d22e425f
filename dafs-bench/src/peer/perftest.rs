//! The programs of perftest, both ends on this machine: the figures that others give of an RDMA device.

use std::io::Read;
use std::net::IpAddr;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};

use crate::interrupt;
use crate::load::{Budget, Load, Work};
use crate::machine::Pins;
use crate::progress::POLL_INTERVAL;
use crate::record::Op;
use crate::stats::Samples;
use crate::subject::Subject;
use crate::subject::server::stop_child;
use crate::sys;

/// Bytes of a message of `ib_send_lat`.
const MESSAGE_BYTES: usize = 4;
const MESSAGES: u64 = 500;
/// Data of one measurement of bandwidth.
const DATA_BYTES: usize = 32 << 20;
/// How long one run may take.
const RUN_TIME_MAX: Duration = Duration::from_secs(60);
/// How often a client tries to reach its server, which says nothing when it is ready.
const ATTEMPTS: u32 = 20;
/// Where the two ends meet: perftest takes no port of its own choice.
const PORTS: std::ops::Range<u16> = 18_515..18_615;

/// Runs a pair of programs for each measurement.
pub struct Perftest {
    ip: IpAddr,
    pins: Pins,
    sleeps: bool,
    port: u16,
}

impl Perftest {
    /// On the device that has the address `ip`; waiting for events where so wished.
    pub fn new(ip: IpAddr, sleeps: bool, pins: &Pins) -> anyhow::Result<Self> {
        let mut version = Command::new("ib_send_lat");
        version.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        version
            .status()
            .context("cannot start ib_send_lat; install it (Debian: apt-get install perftest)")?;
        Ok(Self { ip, pins: pins.clone(), sleeps, port: PORTS.start })
    }

    /// Runs both ends; the fields of the line of figures.
    fn measure(&mut self, program: &str, arguments: &[String]) -> anyhow::Result<Vec<f64>> {
        let mut why = anyhow!("never tried");
        for _ in 0..ATTEMPTS {
            interrupt::check()?;
            self.port = if self.port + 1 < PORTS.end { self.port + 1 } else { PORTS.start };
            let mut server = End(self.spawn(program, arguments, None)?);
            std::thread::sleep(10 * POLL_INTERVAL);
            let mut client = End(self.spawn(program, arguments, Some(self.ip))?);
            match client.output().and_then(|text| figures(&text)) {
                Ok(figures) => {
                    let _ = server.output();
                    return Ok(figures);
                }
                Err(error) => why = error,
            }
        }
        Err(why.context(format!("{program} failed {ATTEMPTS} times")))
    }

    fn spawn(&self, program: &str, arguments: &[String], to: Option<IpAddr>) -> anyhow::Result<Child> {
        let mut command = Command::new(program);
        // -R: connect by address; -F: no complaint about the clock of the CPU.
        command.args(["-R", "-F", "-p"]).arg(self.port.to_string()).args(arguments);
        // The programs for bandwidth know no events.
        command
            .args((self.sleeps && program == "ib_send_lat").then_some("-e"))
            .args(to.map(|ip| ip.to_string()));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        // Two ends that spin on one CPU measure its scheduler.
        sys::tether(&mut command, if to.is_some() { &self.pins.client } else { &self.pins.server });
        command.spawn().with_context(|| format!("cannot start {program}"))
    }
}

impl Subject for Perftest {
    fn transport(&self) -> &str {
        "perftest"
    }

    fn spins(&self) -> bool {
        !self.sleeps
    }

    fn supports(&self, load: &Load) -> bool {
        match load.op {
            Op::Ping => true,
            Op::Read | Op::Write => load.queue_depth > 1 && load.compute_ns.is_none(),
            Op::Copy => false,
        }
    }

    /// A round trip is twice the time that `ib_send_lat` gives. A server's answer to a read is an RDMA write, to a write an RDMA read.
    fn run(&mut self, load: &Load, _: Budget, samples: &mut Samples) -> anyhow::Result<Work> {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "microseconds, positive")]
        if load.op == Op::Ping {
            let arguments =
                ["-s".to_owned(), MESSAGE_BYTES.to_string(), "-n".to_owned(), MESSAGES.to_string()];
            let figures = self.measure("ib_send_lat", &arguments)?;
            // #bytes #iterations t_min t_max t_typical …
            let typical = figures.get(4).context("ib_send_lat gave no typical time")?;
            let ns = typical * 2.0 * 1e3;
            samples.record(ns as u64);
            return Ok(Work { ops: MESSAGES, elapsed: Duration::from_nanos(ns as u64) * 500 });
        }
        let program = if load.op == Op::Read { "ib_write_bw" } else { "ib_read_bw" };
        let count = (DATA_BYTES / load.bytes.max(1)).clamp(20, 5000).max(load.queue_depth);
        let arguments = ["-s", "-n", "-t"].into_iter().map(str::to_owned);
        let values = [load.bytes, count, load.queue_depth].map(|value| value.to_string());
        let arguments: Vec<String> = arguments.zip(values).flat_map(|(name, value)| [name, value]).collect();
        let figures = self.measure(program, &arguments)?;
        // #bytes #iterations peak average …, in MiB/s
        let average = figures.get(3).with_context(|| format!("{program} gave no average"))?;
        let seconds = (count * load.bytes) as f64 / (1 << 20) as f64 / average.max(1e-9);
        let work = Work { ops: count as u64, elapsed: Duration::from_secs_f64(seconds) };
        Ok(work)
    }
}

/// The fields of the last line that has only numbers.
fn figures(text: &str) -> anyhow::Result<Vec<f64>> {
    let lines = text.lines().rev().map(|line| line.split_whitespace().map(str::parse).collect());
    // Where it cannot tell the speed of its clock, as under emulation now and then, it divides by zero.
    let sane = |fields: &Vec<f64>| fields.len() > 3 && fields.iter().all(|field| field.abs() < 1e9);
    let mut lines = lines.filter_map(|fields: Result<Vec<f64>, _>| fields.ok()).filter(sane);
    lines.next().with_context(|| {
        let last = text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("nothing");
        format!("no figures; it said last: {last}")
    })
}

/// A running program, ended with its owner.
struct End(Child);

impl End {
    /// What it printed, once it has ended.
    fn output(&mut self) -> anyhow::Result<String> {
        let start = Instant::now();
        while self.0.try_wait()?.is_none() {
            interrupt::check()?;
            if start.elapsed() > RUN_TIME_MAX {
                bail!("it did not end in {RUN_TIME_MAX:?}");
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        let mut text = String::new();
        // A page or two: the pipe holds it.
        self.0.stdout.take().context("no output")?.read_to_string(&mut text)?;
        Ok(text)
    }
}

impl Drop for End {
    fn drop(&mut self) {
        if !matches!(self.0.try_wait(), Ok(Some(_))) {
            stop_child(&mut self.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_the_last_line_of_numbers() {
        let text = " #bytes #iterations t_min[usec] t_max[usec] t_typical[usec]\n 4 500 70.1 400.2 74.5 80.0\n-----\n";
        assert_eq!(figures(text).unwrap(), [4.0, 500.0, 70.1, 400.2, 74.5, 80.0]);
    }

    #[test]
    fn figures_of_a_failure_are_an_error_that_says_what_was_said() {
        let error = figures("Couldn't connect to 10.9.9.1:18515\n").unwrap_err();
        assert!(error.to_string().contains("Couldn't connect"), "{error}");
    }
}
