//! Where the coordination store of a cluster bends: a queueing model of many servers and clients, as discrete events, with service times
//! that were measured. It is for clusters that are larger than the machines at hand.
//!
//!     cargo run --release -p dafs-bench --example cluster_model -- SERVERS CLIENTS CHANGES_PER_CLIENT_PER_SECOND [STORE_CPUS]
//!
//! A change is an append, a lock or a change of a name. It is a transaction before, and what came of it goes with that of others, one
//! transaction a server at a time. Each server has eight threads that ask the store.

#![allow(clippy::cast_possible_truncation, reason = "times and counts are small and not negative")]

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// CPU time of etcd 3.4 for each kind of call, microseconds: its JSON gateway included. Measured by several connections at once.
const INTENT_US: f64 = 450.0;
const END_US: f64 = 400.0;
/// More for each further operation whose end is in the same transaction.
const END_MORE_US: f64 = 60.0;
const RENEWAL_US: f64 = 190.0;
/// A look whether `live/` has changed: for itself, and for each server.
const LOOK_US: (f64, f64) = (230.0, 1.7);
/// A read of all of it.
const READ_US: (f64, f64) = (330.0, 26.0);
/// A transaction waits so long for the disk, beside others.
const SYNC_US: f64 = 500.0;
/// The change itself, on the file system.
const CHANGE_US: f64 = 200.0;
const LOOKS_PER_SECOND: f64 = 5.0;
/// Three for each term of 5 s.
const RENEWALS_PER_SECOND: f64 = 0.6;
const THREADS: usize = 8;
/// Simulated, seconds: the first is left out.
const TIME_S: f64 = 6.0;

/// SplitMix64.
struct Random(u64);

impl Random {
    fn unit(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (((mixed ^ (mixed >> 31)) >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    }

    fn exponential(&mut self, mean: f64) -> f64 {
        -mean * self.unit().ln()
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Call {
    Intent { began: f64 },
    End { operations: usize },
    Renewal,
    Look,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    /// A client of a server wants a change.
    Wish(usize),
    /// The store has got a call of a server.
    Asked(usize, Call),
    /// A CPU of the store is done with one.
    Served(usize, Call),
    /// The server has the answer.
    Answered(usize, Call),
    /// A change is carried out.
    Changed(usize),
    Upkeep(usize, Call),
}

#[derive(Default)]
struct Server {
    asking: usize,
    waiting: VecDeque<f64>,
    ended: usize,
    is_ending: bool,
}

struct Model {
    now: f64,
    next: u64,
    events: BinaryHeap<Reverse<(u64, u64, usize)>>,
    bodies: Vec<Event>,
    random: Random,
    servers: Vec<Server>,
    queue: VecDeque<(usize, Call)>,
    free: usize,
    reads_whole: bool,
    busy: f64,
    latencies: Vec<f64>,
    looks: Vec<f64>,
    asked_at: Vec<f64>,
}

impl Model {
    fn new(servers: usize, cpus: usize, reads_whole: bool) -> Self {
        Self {
            now: 0.0,
            next: 0,
            events: BinaryHeap::new(),
            bodies: Vec::new(),
            random: Random(7),
            servers: (0..servers).map(|_| Server::default()).collect(),
            queue: VecDeque::new(),
            free: cpus,
            reads_whole,
            busy: 0.0,
            latencies: Vec::new(),
            looks: Vec::new(),
            asked_at: vec![0.0; servers],
        }
    }

    fn after(&mut self, time_us: f64, event: Event) {
        let at_ns = ((self.now + time_us) * 1000.0) as u64;
        self.next += 1;
        self.bodies.push(event);
        self.events.push(Reverse((at_ns, self.next, self.bodies.len() - 1)));
    }

    fn cost(&self, call: Call) -> f64 {
        let all = self.servers.len() as f64;
        match call {
            Call::Intent { .. } => INTENT_US,
            Call::End { operations } => END_US + END_MORE_US * (operations - 1) as f64,
            Call::Renewal => RENEWAL_US,
            Call::Look if self.reads_whole => READ_US.0 + READ_US.1 * all,
            Call::Look => LOOK_US.0 + LOOK_US.1 * all,
        }
    }

    fn serve(&mut self) {
        while self.free > 0
            && let Some((server, call)) = self.queue.pop_front()
        {
            self.free -= 1;
            let mean = self.cost(call);
            let takes = mean / 2.0 + self.random.exponential(mean / 2.0);
            self.busy += takes;
            self.after(takes, Event::Served(server, call));
        }
    }

    fn ask(&mut self, server: usize) {
        let own = &mut self.servers[server];
        while own.asking < THREADS
            && let Some(began) = own.waiting.pop_front()
        {
            own.asking += 1;
            self.queue.push_back((server, Call::Intent { began }));
        }
        let own = &mut self.servers[server];
        if !own.is_ending && own.ended > 0 {
            own.is_ending = true;
            let operations = std::mem::take(&mut own.ended).min(25);
            self.queue.push_back((server, Call::End { operations }));
        }
        self.serve();
    }

    fn handle(&mut self, event: Event, changes_per_us: f64) {
        match event {
            Event::Wish(server) => {
                let next = self.random.exponential(1.0 / changes_per_us);
                self.after(next, Event::Wish(server));
                let now = self.now;
                self.servers[server].waiting.push_back(now);
                self.ask(server);
            }
            Event::Upkeep(server, call) => {
                let rate = if call == Call::Look { LOOKS_PER_SECOND } else { RENEWALS_PER_SECOND };
                // The next is counted from the answer; here from the question.
                self.after(1e6 / rate, Event::Upkeep(server, call));
                self.after(0.0, Event::Asked(server, call));
            }
            Event::Asked(server, call) => {
                self.asked_at[server] = self.now;
                self.queue.push_back((server, call));
                self.serve();
            }
            Event::Served(server, call) => {
                self.free += 1;
                let syncs = matches!(call, Call::Intent { .. } | Call::End { .. });
                self.after(if syncs { SYNC_US } else { 0.0 }, Event::Answered(server, call));
                self.serve();
            }
            Event::Answered(server, call) => match call {
                Call::Intent { began } => {
                    self.servers[server].asking -= 1;
                    self.after(CHANGE_US, Event::Changed(server));
                    if self.now > 1e6 {
                        self.latencies.push(self.now + CHANGE_US - began);
                    }
                    self.ask(server);
                }
                Call::End { .. } => {
                    self.servers[server].is_ending = false;
                    self.ask(server);
                }
                Call::Look => self.looks.push(self.now - self.asked_at[server]),
                Call::Renewal => {}
            },
            Event::Changed(server) => {
                self.servers[server].ended += 1;
                self.ask(server);
            }
        }
    }
}

/// What came of it, as a row.
fn run(servers: usize, changes: f64, cpus: usize, reads_whole: bool) -> String {
    let mut model = Model::new(servers, cpus, reads_whole);
    for server in 0..servers {
        for call in [Call::Look, Call::Renewal] {
            let first = model.random.unit() * 1e6 / LOOKS_PER_SECOND;
            model.after(first, Event::Upkeep(server, call));
        }
        model.after(0.0, Event::Wish(server));
    }
    let changes_per_us = changes / servers as f64 / 1e6;
    while let Some(Reverse((at_ns, _, body))) = model.events.pop() {
        model.now = at_ns as f64 / 1000.0;
        if model.now > TIME_S * 1e6 {
            break;
        }
        let event = model.bodies[body];
        model.handle(event, changes_per_us);
    }
    let answered = model.latencies.len() as f64 / (TIME_S - 1.0);
    let at = |sorted: &mut Vec<f64>, part: f64| {
        sorted.sort_by(f64::total_cmp);
        sorted.get((sorted.len() as f64 * part) as usize).copied().unwrap_or(f64::INFINITY) / 1000.0
    };
    let busy = model.busy / (TIME_S * 1e6 * cpus as f64);
    format!(
        "| {servers} | {changes:.0} | {answered:.0} | {:.0} % | {:.1} | {:.1} | {:.1} |",
        100.0 * busy,
        at(&mut model.latencies, 0.5),
        at(&mut model.latencies, 0.99),
        at(&mut model.looks, 0.99),
    )
}

fn main() {
    let number = |place: usize| std::env::args().nth(place).and_then(|text| text.parse::<f64>().ok());
    let columns = [
        "servers",
        "changes wanted a second",
        "carried out",
        "store busy",
        "change: median, ms",
        "p99",
        "look: p99",
    ];
    let header = format!("| {} |\n|{}", columns.join(" | "), "---|".repeat(columns.len()));
    if let (Some(servers), Some(clients), Some(each)) = (number(1), number(2), number(3)) {
        let cpus = number(4).unwrap_or(2.0) as usize;
        println!("{header}\n{}", run(servers as usize, clients * each, cpus, false));
        return;
    }
    for reads_whole in [true, false] {
        println!(
            "\n{}:\n{header}",
            if reads_whole { "whole reads" } else { "looks whether anything has changed" }
        );
        for servers in [3, 10, 30, 60, 100] {
            for changes in [100.0, 1000.0, 2000.0, 3000.0] {
                println!("{}", run(servers, changes, 2, reads_whole));
            }
        }
    }
}
