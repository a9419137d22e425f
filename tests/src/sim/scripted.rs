//! A world without chances in which a test says what happens to which request.

use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;

use dafs_client::{Config, OpenOptions, Session, Stability};
use dafs_proto::transport::Address;
use dafs_proto::transport::sim::{FaultPlan, NodeId};
use dafs_proto::wire::{Features, Flags, Header, Opcode, Status};

use super::script::{Action, Greeting, Script};
use super::world::{World, WorldPlan};

/// A world whose clients are on [`ScriptedWorld::CLIENT`].
pub struct ScriptedWorld {
    world: World,
    script: Script,
}

impl ScriptedWorld {
    /// Where clients are.
    pub const CLIENT: NodeId = NodeId(1);

    /// A calm network, and all that the server can do.
    pub fn new(seed: u64) -> Self {
        Self::with(seed, FaultPlan::calm(), Features::all())
    }

    /// A network with these faults, and a server that offers these features.
    pub fn with(seed: u64, network: FaultPlan, features: Features) -> Self {
        let script = Script::default();
        let plan = WorldPlan { network, crash_ppm: 0 };
        Self { world: World::scripted(seed, plan, features, script.clone()), script }
    }

    /// Settings of a client that says who it is, and asks for few credits.
    pub fn config() -> Config {
        Config { credits: 8, client_id: Some([7; 16]), ..Config::default() }
    }

    /// A session with these settings.
    pub fn connect(&self, config: &Config) -> dafs_client::Result<Session> {
        self.world.connect(Self::CLIENT.0, config)
    }

    /// A session.
    pub fn session(&self) -> Session {
        self.connect(&Self::config()).expect("a session")
    }

    /// Does `action` with the first request of this opcode from now on.
    pub fn once(&self, opcode: Opcode, action: impl Fn(&Header) -> Action + Send + 'static) {
        let mut is_done = false;
        self.script.hook(move |header| {
            if is_done || header.opcode != opcode {
                return Action::Serve;
            }
            is_done = true;
            action(header)
        });
    }

    /// From now on `hook` decides about each request. It must not call the world.
    pub fn hook(&self, hook: impl FnMut(&Header) -> Action + Send + 'static) {
        self.script.hook(hook);
    }

    /// From now on `greet` decides which sessions are given, and what their clients are told. It must not call the world.
    pub fn greet(&self, greet: impl FnMut(Greeting<'_>) -> Status + Send + 'static) {
        self.script.greet(greet);
    }

    /// A session with the first of these ports that gives one.
    pub fn connect_to(&self, ports: &[u32], config: &Config) -> dafs_client::Result<Session> {
        let addresses: Vec<Address> = ports.iter().map(|port| Address::Sim(*port)).collect();
        let domain = Arc::new(self.net().domain(Self::CLIENT));
        Session::connect_with_any(domain, &addresses, config, self.clock())
    }

    /// Requests that the server was sent so far, but for those of handshakes.
    pub fn log(&self) -> Vec<(Opcode, Flags)> {
        self.script.log()
    }

    /// How many of them were of this opcode.
    pub fn count(&self, opcode: Opcode) -> usize {
        self.log().iter().filter(|(logged, _)| *logged == opcode).count()
    }

    /// Somebody else makes a new file of this name, durably; one that is there loses its name.
    pub fn put(&self, path: impl AsRef<Path>, content: &[u8]) {
        self.beside(|export| {
            let _ = export.remove_file(path.as_ref());
            let file = export
                .open_with(path.as_ref(), OpenOptions::new().write(true).create_new(true))
                .expect("a new file");
            for (part, at) in content.chunks(1 << 20).zip((0u64..).step_by(1 << 20)) {
                file.write_at_with(part, at, Stability::FileSync).expect("a write");
            }
        });
    }

    /// What somebody else reads in a file.
    pub fn content(&self, path: impl AsRef<Path>) -> Vec<u8> {
        self.beside(|export| {
            let file = export.open(path).expect("a file");
            let mut content =
                vec![0; usize::try_from(file.metadata().expect("a size").size).expect("a small file")];
            file.read_exact_at(&mut content, 0).expect("a read");
            content
        })
    }

    /// Whether somebody else finds this name.
    pub fn exists(&self, path: impl AsRef<Path>) -> bool {
        self.beside(|export| export.metadata(path).is_ok())
    }

    /// In a short session that the script does not see.
    fn beside<T>(&self, work: impl FnOnce(&dafs_client::Export) -> T) -> T {
        let config = Config { client_id: Some([99; 16]), ..Config::default() };
        let domain = Arc::new(self.net().domain(World::BESIDE));
        let session = Session::connect_with(domain, self.world.address(), &config, self.clock());
        let session = session.expect("a session beside");
        let done = work(&session.mount("data").expect("the export"));
        session.close();
        done
    }
}

impl Deref for ScriptedWorld {
    type Target = World;

    fn deref(&self) -> &World {
        &self.world
    }
}
