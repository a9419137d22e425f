//! The same programs on files over several servers, which the directory asks for: no program says so.

use dafs_client::Session;
use dafs_stripe::{Striping, Volume};
use dafs_tests::harness::{Harness, On};
use dafs_tests::mpi::{Run, Way};

use crate::ends::requests;
use crate::on_each_way;
use crate::programs::file;

on_each_way! {
    programs_on_striped_files,
}

/// A volume whose files have pieces on two servers, in units that everything crosses.
struct World {
    metadata: Harness,
    data: Vec<Harness>,
    sessions: Vec<Session>,
}

impl World {
    fn start(on: On) -> Self {
        let data: Vec<Harness> = (0..2).map(|_| Harness::start(on)).collect();
        let metadata = Harness::start(on);
        let url = |server: &Harness| {
            let colon = if server.url().contains("shm://") { ":" } else { "" };
            format!("{}{colon}/data", server.url())
        };
        let config = metadata.client_config(&dafs_client::Config::default());
        let volume = Volume::connect(url(&metadata), &config).unwrap();
        for (number, server) in (1..).zip(&data) {
            let url = dafs_client::Url::parse(url(server).as_ref()).unwrap();
            volume.add_server(&format!("io{number}"), &url).unwrap();
        }
        let striping = Striping { unit: 4096, factor: None, first: None };
        volume.set_striping("", Some(&striping)).unwrap();
        let sessions = data.iter().map(Harness::session).collect();
        Self { metadata, data, sessions }
    }

    /// Runs all cases of a program on two ranks. Both servers have had their part of it, and no piece is left.
    fn run(&self, way: Way, on: On, program: &str, cases: &str) {
        let moved = |session: &Session| requests(session, &["Write", "WriteList", "WriteView", "Batch"]);
        let before: Vec<u64> = self.sessions.iter().map(moved).collect();
        let run = Run::new(way, 2, program).arg(cases).arg(file(&self.metadata, on)).arg("--expect-dafs");
        run.run().passed();
        for (server, (session, before)) in self.sessions.iter().zip(before).enumerate() {
            assert!(moved(session) > before, "{program}: server {server} was given nothing");
        }
        for server in &self.data {
            let left = std::fs::read_dir(server.data().join(".dafs-pieces")).unwrap().count();
            assert_eq!(left, 1, "{program}: the identity of the server alone is left");
        }
        assert_eq!(
            std::fs::read_dir(self.metadata.data()).unwrap().count(),
            1,
            "{program}: and the servers file"
        );
    }
}

// [STRIPE-8] [STRIPE-13] [STRIPE-20] One half of the programs over either transport: all of them take long.
fn programs_on_striped_files(way: Way, on: On) {
    let world = World::start(on);
    let programs: &[(&str, &str)] = match on {
        On::Tcp => &[
            ("contiguous", "all"),
            ("random", "independent,nonblocking"),
            ("views", "struct,many_pieces"),
            ("collective", "all"),
        ],
        _ => &[
            ("positions", "all"),
            ("untouched", "all"),
            ("nonblocking", "all"),
            ("atomic", "all"),
            ("shared", "all"),
        ],
    };
    programs.iter().for_each(|(program, cases)| world.run(way, on, program, cases));
}
