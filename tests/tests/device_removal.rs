//! The RDMA device is removed under a server, or is not alone. A suite of its own, as it changes what others find meanwhile.
#![cfg(feature = "verbs")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "all of this is test code, helpers included")]

/// The provider's name stands in the path of each test.
mod verbs {
    use std::fs;
    use std::net::{IpAddr, SocketAddr};
    use std::os::unix::fs::PermissionsExt;
    use std::path::PathBuf;
    use std::process::{Child, Command, Output, Stdio};
    use std::sync::{Mutex, PoisonError};
    use std::time::{Duration, Instant};

    use dafs_client::{Config, ReconnectPolicy, Session};
    use dafs_proto::transport::verbs::VerbsDomain;
    use dafs_proto::transport::{Address, ConnectParams, Domain};
    use dafs_tests::harness::{On, device_address, key_for};
    use dafs_tests::program::{Program, key_file, program};

    /// A test that makes no progress for so long has hung.
    const HANG: Duration = Duration::from_secs(60);

    /// One test at a time changes the devices.
    static ALONE: Mutex<()> = Mutex::new(());

    const CHILD: &str = "DAFS_REMOVAL_CHILD_URL";

    fn wait_for(what: &str, mut reached: impl FnMut() -> bool) {
        let begin = Instant::now();
        while !reached() {
            assert!(begin.elapsed() < HANG, "{what}: not reached");
            std::thread::yield_now();
        }
    }

    /// The client over RDMA: uses its session until that ends, and says why. Another process, as whoever has the device open keeps it
    /// from going.
    fn use_the_device(url: &str) {
        let address = Address::Verbs(url.trim_start_matches("dafs+verbs://").parse().unwrap());
        let reconnect = ReconnectPolicy { attempts_max: 2, ..ReconnectPolicy::default() };
        let config = Config { key: key_for(&address), reconnect, ..Config::default() };
        let session = Session::connect(url, &config).unwrap();
        println!("connected");
        loop {
            if let Err(error) = session.ping() {
                println!("ended: {error}");
                return;
            }
        }
    }

    /// A Soft-RoCE device that is there again when this ends.
    struct Removed {
        removing: Child,
        netdev: String,
    }

    impl Removed {
        /// The name of the network interface that carries the device, if this is one that can be made again.
        fn netdev() -> Option<String> {
            let shown = said(Command::new("rdma").args(["link", "show"]).output().ok()?);
            let line = shown.lines().find(|line| line.contains("rxe0/"))?;
            line.split_once("netdev ")?.1.split_whitespace().next().map(str::to_owned)
        }

        fn begin(netdev: String) -> Self {
            let removing = Command::new("rdma").args(["link", "del", "rxe0"]).spawn().unwrap();
            Self { removing, netdev }
        }
    }

    impl Drop for Removed {
        fn drop(&mut self) {
            let _ = self.removing.wait();
            let add = ["link", "add", "rxe0", "type", "rxe", "netdev", &self.netdev];
            let added = Command::new("rdma").args(add).status();
            assert!(added.is_ok_and(|status| status.success()), "the device is there again");
        }
    }

    fn said(output: Output) -> String {
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    // [PROV-26] [VERBS-6] [VERBS-52]
    #[test]
    #[ignore = "needs soft-roce: no other device can be removed and made again"]
    fn device_that_is_removed_ends_its_connections_and_nothing_else() {
        if let Ok(url) = std::env::var(CHILD) {
            return use_the_device(&url);
        }
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let netdev = Removed::netdev().unwrap();
        let local = tempfile::tempdir().unwrap();
        // Ends last, whatever fails: the device does not go before the server.
        let mut _removed = None;
        let socket = local.path().join("socket");
        let flags = ["--no-calibrate", "--listen", &format!("shm://{}", socket.display())];
        let program = Program::start(On::Verbs, &flags);
        let shm = Session::connect(Address::Shm(socket).to_string(), &Config::default()).unwrap();
        let file = shm.mount("mem").unwrap().create("f").unwrap();
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--nocapture", "--exact"])
            .arg("verbs::device_that_is_removed_ends_its_connections_and_nothing_else")
            .env(CHILD, program.address().to_string())
            .env("DAFS_VERBS_ADDRESS", device_address().to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        wait_for("a session over RDMA", || shm.statistics().unwrap().sessions == 2);
        // It blocks until nobody has the device open: not before the server has ended.
        _removed = Some(Removed::begin(netdev));
        let child = said(child.wait_with_output().unwrap());
        assert!(child.contains("connected") && child.contains("ended: "), "{child}");
        wait_for("the server has noticed", || shm.statistics().unwrap().connections == 1);
        wait_for("the server says so", || program.log().contains("was removed"));
        file.write_all_at(b"goes on", 0).unwrap();
        let mut found = [0; 7];
        file.read_exact_at(&mut found, 0).unwrap();
        assert_eq!(&found, b"goes on");
        assert_eq!(shm.reconnects(), 0);
    }
    /// A second device of Soft-RoCE, with an address of its own.
    struct Second;

    impl Second {
        const NAME: &str = "rxe9";
        const NETDEV: &str = "v1";
        const IP: &str = "10.9.10.1";

        fn new() -> Self {
            let run = |program, arguments: &[&str]| {
                assert!(Command::new(program).args(arguments).status().unwrap().success(), "{arguments:?}");
            };
            let second = Self;
            run("ip", &["address", "add", &format!("{}/24", Self::IP), "dev", Self::NETDEV]);
            run("rdma", &["link", "add", Self::NAME, "type", "rxe", "netdev", Self::NETDEV]);
            second
        }

        /// From now on nobody may open it who heeds the mode of its node in /dev.
        fn close(&self) {
            let is_its = |node: &PathBuf| {
                fs::read_to_string(node.join("ibdev")).is_ok_and(|device| device.trim() == Self::NAME)
            };
            let mut nodes =
                fs::read_dir("/sys/class/infiniband_verbs").unwrap().map(|entry| entry.unwrap().path());
            let node =
                PathBuf::from("/dev/infiniband").join(nodes.find(is_its).unwrap().file_name().unwrap());
            fs::set_permissions(node, fs::Permissions::from_mode(0o0)).unwrap();
        }

        /// The command, run by who heeds modes.
        fn dafs(arguments: &[&str]) -> Output {
            let directory = tempfile::tempdir().unwrap();
            Command::new("setpriv")
                .args(["--bounding-set", "-dac_override,-dac_read_search", "--"])
                .arg(program().with_file_name("dafs"))
                .args(arguments)
                .env("DAFS_KEY_FILE", key_file(directory.path()))
                .output()
                .unwrap()
        }
    }

    impl Drop for Second {
        fn drop(&mut self) {
            let _ = Command::new("rdma").args(["link", "del", Self::NAME]).status();
            let address = format!("{}/24", Self::IP);
            let _ = Command::new("ip").args(["address", "del", &address, "dev", Self::NETDEV]).status();
        }
    }

    // [VERBS-5] To one device's address from a domain of another's.
    #[test]
    #[ignore = "needs soft-roce: a second device is made"]
    fn domain_refuses_what_is_reached_through_another_device() {
        if std::env::var(CHILD).is_err() {
            let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
            let _second = Second::new();
            // It has both devices open until it ends, which the end of the second waits for.
            let child = Command::new(std::env::current_exe().unwrap())
                .args(["--ignored", "--nocapture", "--exact"])
                .arg("verbs::domain_refuses_what_is_reached_through_another_device")
                .env(CHILD, "itself")
                .output()
                .unwrap();
            assert!(child.status.success() && said(child.clone()).contains("refused: "), "{child:?}");
            return;
        }
        let params = ConnectParams::default();
        let at = |ip: IpAddr| Address::Verbs(SocketAddr::new(ip, 0));
        let (own, other) = (VerbsDomain::new(), VerbsDomain::new());
        let first = own.listen(&at(device_address()), &params).unwrap();
        let second = other.listen(&at(Second::IP.parse().unwrap()), &params).unwrap();
        let error = own.connect(second.address(), &params, HANG).err().unwrap().to_string();
        assert!(error.contains("is reached through another RDMA device than rxe0"), "{error}");
        println!("refused: {error}");
        drop(first);
    }

    // [VERBS-43]
    #[test]
    #[ignore = "needs soft-roce: a second device is made"]
    fn device_that_cannot_be_opened_is_listed_and_hides_no_other() {
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        // Ends last: the server has it open.
        let second = Second::new();
        second.close();
        let listed = Second::dafs(&["info", "--devices"]);
        let text = said(listed.clone());
        assert!(listed.status.success(), "{listed:?}");
        assert!(text.contains("rxe0 port 1: ") && text.contains("rxe9 port 1: "), "{text}");
        assert!(text.contains("cannot be used: it cannot be opened"), "{text}");
        let server = Program::start(On::Verbs, &["--no-calibrate"]);
        let used = Second::dafs(&["info", &server.address().to_string()]);
        assert!(used.status.success(), "{used:?}");
    }
}
