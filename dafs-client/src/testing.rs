//! For unit tests: the real server on the simulated network, with sessions of this crate.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use dafs_proto::session::Moment;
use dafs_tests::sim::{PORT, ScriptedWorld};

use crate::{Clock, Config, Result, Session};

/// Runs the test of this name once more, in a process of its own; `true` in that process, where it is to go on. A fork takes hold of all
/// sessions of its process, and other tests count on having theirs for themselves.
pub(crate) fn is_alone(test: &str) -> bool {
    const ALONE: &str = "DAFS_TEST_IS_ALONE";
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let program = std::env::current_exe().expect("the path of the tests");
    let mut again = std::process::Command::new(program);
    again.args(["--exact", test, "--include-ignored", "--nocapture"]).env(ALONE, "");
    let output = again.output().expect("a process");
    let said =
        String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
    false
}

/// Above it a request names memory instead of carrying data.
pub(crate) const INLINE_MAX: u32 = 16 * 1024;
/// See [`ScriptedWorld`], whose own sessions are of another copy of this library.
pub(crate) struct World(ScriptedWorld);

impl World {
    pub(crate) fn new(seed: u64) -> Self {
        Self(ScriptedWorld::new(seed))
    }

    pub(crate) fn connect(&self, config: &Config) -> Result<Session> {
        let domain = Arc::new(self.net().domain(ScriptedWorld::CLIENT));
        Session::connect_with(domain, PORT, config, Arc::new(WorldClock(dafs_tests::sim::World::clone(self))))
    }

    pub(crate) fn session(&self) -> Session {
        self.connect(&config()).expect("a session")
    }
}

impl Deref for World {
    type Target = ScriptedWorld;

    fn deref(&self) -> &ScriptedWorld {
        &self.0
    }
}

pub(crate) fn config() -> Config {
    Config { credits: 8, client_id: Some([7; 16]), ..Config::default() }
}

struct WorldClock(dafs_tests::sim::World);

impl Clock for WorldClock {
    fn now(&self) -> Moment {
        Moment::default().after(self.0.net().now())
    }

    fn sleep(&self, duration: Duration) {
        self.0.let_time_pass(duration);
    }
}
