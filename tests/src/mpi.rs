//! MPI programs over dafs: the driver installed for this machine's MPI library, programs compiled, and runs of them.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, LazyLock, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::program::{Signal, signal, write_script, xtask};

/// The two ways into Open MPI, and the library without dafs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Components of OMPIO.
    Ompio,
    /// A driver of ROMIO, preloaded.
    Romio,
}

impl Way {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Ompio, Self::Romio];

    fn settings(self) -> &'static str {
        match self {
            Self::Ompio => "env.sh",
            Self::Romio => "env-romio.sh",
        }
    }
}

/// A run may take so long: it is there to end a hang, not to judge speed.
const RUN_TIME_MAX: Duration = Duration::from_secs(240);

/// A run of an MPI program.
pub struct Run {
    command: Command,
    /// Where Open MPI keeps the files of this job.
    directory: tempfile::TempDir,
}

/// What came of a run.
#[derive(Debug)]
pub struct Done {
    /// Its exit status was 0.
    pub succeeded: bool,
    /// What all ranks said on standard output.
    pub stdout: String,
    /// And on standard error.
    pub stderr: String,
}

impl Run {
    /// `ranks` processes of a program of `tests/mpi` over dafs.
    pub fn new(way: Way, ranks: u32, program: &str) -> Self {
        Self::of(way, ranks, &compiled(program))
    }

    /// As [`Run::new`], of any program.
    pub fn of(way: Way, ranks: u32, program: &Path) -> Self {
        let mut command = Command::new("/bin/sh");
        // As a user does it: the settings, then mpirun.
        let words = ". \"$0\" && exec mpirun \"$@\"";
        command.args(["-c", words]).arg(installed().join(way.settings()));
        command.args(["--oversubscribe", "--bind-to", "none", "-n", &ranks.to_string()]).arg(program);
        command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
        // No network but the loopback, and no devices that a container may not use.
        command.env("OMPI_MCA_btl", "self,vader").env("OMPI_MCA_btl_vader_single_copy_mechanism", "none");
        // What it would choose; to look for the hardware of the others takes a fifth of a second at each start.
        command.env("OMPI_MCA_pml", "ob1").env("OMPI_MCA_mtl", "^ofi").env("OMPI_MCA_osc", "^ucx");
        command.env("OMPI_MCA_plm", "isolated").env("OMPI_MCA_mpi_yield_when_idle", "1");
        // Two that begin at once fail where both make the directory that they share.
        let directory = tempfile::tempdir().expect("a temporary directory");
        command.env("OMPI_MCA_orte_tmpdir_base", directory.path());
        Self { command, directory }
    }

    /// As [`Run::new`], on so many nodes as Open MPI sees it: this machine under as many names, each with a daemon and no memory in common.
    pub fn on_nodes(way: Way, nodes: u32, ranks: u32, program: &str) -> Self {
        let mut run = Self::new(way, ranks, program);
        let shell = run.directory.path().join("shell");
        // In place of ssh: the options go, and each host has a directory of its own, as of a machine of its own.
        let words = "#!/bin/sh\nwhile [ \"${1#-}\" != \"$1\" ]; do shift; done\nexport TMPDIR=\"$TMPDIR/$1\"\nshift\n\
                     mkdir -p \"$TMPDIR\" && exec /bin/sh -c \"$*\"\n";
        write_script(&shell, words);
        run.command.env_remove("OMPI_MCA_orte_tmpdir_base").env("TMPDIR", run.directory.path());
        run.command.env("OMPI_MCA_plm", "rsh").env("OMPI_MCA_plm_rsh_agent", shell);
        run.command.env("OMPI_MCA_btl", "self,tcp").env("OMPI_MCA_btl_tcp_if_include", "lo");
        let hosts: Vec<String> =
            (1..=nodes).map(|node| format!("node{node}:{}", ranks.div_ceil(nodes))).collect();
        run.command
            .env("OMPI_MCA_oob_tcp_if_include", "lo")
            .env("OMPI_MCA_orte_default_dash_host", hosts.join(","));
        run
    }

    /// A word of its command line.
    pub fn arg(mut self, word: impl AsRef<std::ffi::OsStr>) -> Self {
        self.command.arg(word);
        self
    }

    /// Words of its command line.
    pub fn args(self, words: &[&str]) -> Self {
        words.iter().fold(self, |run, word| run.arg(word))
    }

    /// A variable of its environment.
    pub fn env(mut self, name: &str, value: impl AsRef<std::ffi::OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    /// Runs it to its end.
    ///
    /// # Panics
    /// When it does not end.
    pub fn run(self) -> Done {
        self.run_while(|| {})
    }

    /// As [`Run::run`]; `meanwhile` runs beside it, once it was started.
    pub fn run_while(mut self, meanwhile: impl FnOnce()) -> Done {
        self.command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = self.command.spawn().expect("a shell starts");
        let id = child.id();
        let ended = Arc::new(Mutex::new(false));
        let watched = Arc::clone(&ended);
        let watch = std::thread::spawn(move || {
            let begin = Instant::now();
            while begin.elapsed() < RUN_TIME_MAX {
                if *watched.lock().unwrap_or_else(PoisonError::into_inner) {
                    return false;
                }
                std::thread::park_timeout(RUN_TIME_MAX - begin.elapsed().min(RUN_TIME_MAX));
            }
            let _ = signal(id, Signal::TERM);
            true
        });
        meanwhile();
        let output: Output = child.wait_with_output().expect("the run ends");
        *ended.lock().unwrap_or_else(PoisonError::into_inner) = true;
        watch.thread().unpark();
        let hung = watch.join().unwrap_or(true);
        let done = Done {
            succeeded: output.status.success(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        };
        assert!(!hung, "no end after {RUN_TIME_MAX:?}: {done:?}");
        done
    }
}

impl Done {
    /// Every case passed.
    #[track_caller]
    pub fn passed(&self) -> &Self {
        assert!(self.succeeded, "{}\n{}", self.stdout, self.stderr);
        self
    }
}

/// Where the driver and its glue are installed: built once, as the tests themselves are.
pub fn installed() -> &'static Path {
    static HOME: OnceLock<PathBuf> = OnceLock::new();
    HOME.get_or_init(|| {
        let profile = profile();
        let prefix = profile.join("mpi");
        let driver = [profile.join("deps/libadio_dafs.so"), profile.join("libadio_dafs.so")];
        let driver =
            driver.iter().find(|path| path.exists()).expect("libadio_dafs.so was built with the tests");
        let mut command = xtask();
        command.args(["mpi", "install", "--prefix"]).arg(&prefix).arg("--driver").arg(driver);
        let output = command.output().expect("xtask runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        prefix
    })
}

/// A program of `tests/mpi`, compiled once.
pub fn compiled(name: &str) -> PathBuf {
    compiled_with("mpicc", name, &["-lpthread"])
}

/// As [`compiled`], by another compiler and with other libraries.
pub fn compiled_with(compiler: &str, name: &str, libraries: &[&str]) -> PathBuf {
    static DONE: LazyLock<Mutex<HashMap<String, Arc<OnceLock<PathBuf>>>>> = LazyLock::new(Mutex::default);
    let cell =
        Arc::clone(DONE.lock().unwrap_or_else(PoisonError::into_inner).entry(name.to_owned()).or_default());
    cell.get_or_init(|| {
        let directory = profile().join("mpi-programs");
        std::fs::create_dir_all(&directory).expect("a directory for programs");
        let program = directory.join(name);
        let new = directory.join(format!("{name}.{}", std::process::id()));
        let mut command = Command::new(compiler);
        // HDF5's compiler leaves its object file where it stands.
        command
            .current_dir(&directory)
            .args(["-O1", "-g", "-Wall", "-Wextra"])
            .arg(root().join("tests/mpi").join(name).with_extension("c"));
        let output = command.arg("-o").arg(&new).args(libraries).output().expect("the compiler runs");
        assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
        std::fs::rename(&new, &program).expect("a program in its place");
        program
    })
    .clone()
}

/// The directory that this test's executable was built into: target/PROFILE.
fn profile() -> PathBuf {
    let test = std::env::current_exe().expect("the test's own path");
    test.parent().and_then(Path::parent).expect("target/PROFILE/deps").to_owned()
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace").to_owned()
}
