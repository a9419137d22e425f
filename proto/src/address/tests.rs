use super::*;

fn host(host: &str, port: u16) -> Location {
    Location::Host { host: host.to_owned(), port }
}

fn url(scheme: Scheme, location: Location, export: Option<&[u8]>, path: &[u8]) -> Url {
    Url { scheme, location, export: export.map(<[u8]>::to_vec), path: path.to_vec() }
}

fn parse(text: &[u8]) -> Result<Url, Problem> {
    Url::parse(OsStr::from_bytes(text)).map_err(|error| error.problem)
}

fn parse_listen(text: &str) -> Result<ListenUrl, Problem> {
    ListenUrl::parse(OsStr::new(text)).map_err(|error| error.problem)
}

// [PROV-77] [PROV-78] [PROV-79] [PROV-93]
#[test]
fn url_of_every_form_is_read_and_written_back() {
    let socket = |path: &str| Location::Socket(PathBuf::from(path));
    let hosts = |all: &[(&str, u16)]| {
        Location::Hosts(all.iter().map(|(host, port)| ((*host).to_owned(), *port)).collect())
    };
    let cases: [(&[u8], Url); 23] = [
        (b"dafs://host", url(Scheme::Any, host("host", DEFAULT_PORT), None, b"")),
        (b"dafs://host/", url(Scheme::Any, host("host", DEFAULT_PORT), None, b"")),
        (b"dafs://host:1/data", url(Scheme::Any, host("host", 1), Some(b"data"), b"")),
        (b"dafs://host:1/data/", url(Scheme::Any, host("host", 1), Some(b"data"), b"")),
        (b"dafs+tcp://10.0.0.1:65535/d/a/b", url(Scheme::Tcp, host("10.0.0.1", 65535), Some(b"d"), b"a/b")),
        (b"dafs+tcp://[::1]:7/d/a/", url(Scheme::Tcp, host("::1", 7), Some(b"d"), b"a/")),
        (b"dafs+tcp://[fe80::1%eth0]", url(Scheme::Tcp, host("fe80::1%eth0", DEFAULT_PORT), None, b"")),
        (b"dafs+tcp://[fe80::1%25eth0]", url(Scheme::Tcp, host("fe80::1%eth0", DEFAULT_PORT), None, b"")),
        (b"dafs://[fe80::1%25a%2fb%25]:7", url(Scheme::Any, host("fe80::1%a/b%", 7), None, b"")),
        (b"dafs://[fe80::1%25]", url(Scheme::Any, host("fe80::1%25", DEFAULT_PORT), None, b"")),
        (b"dafs://[fe80::1%2525]", url(Scheme::Any, host("fe80::1%25", DEFAULT_PORT), None, b"")),
        (b"DAFS://h/D", url(Scheme::Any, host("h", DEFAULT_PORT), Some(b"D"), b"")),
        (b"Dafs+Tcp://H", url(Scheme::Tcp, host("H", DEFAULT_PORT), None, b"")),
        (b"dafs+verbs://h/d//a//b", url(Scheme::Verbs, host("h", DEFAULT_PORT), Some(b"d"), b"a//b")),
        (b"dafs+shm:///tmp/dafs.sock", url(Scheme::Shm, socket("/tmp/dafs.sock"), None, b"")),
        (
            b"dafs+shm:///tmp/dafs.sock:/data/tree",
            url(Scheme::Shm, socket("/tmp/dafs.sock"), Some(b"data"), b"tree"),
        ),
        (b"dafs+shm:///s:/d/x:/y", url(Scheme::Shm, socket("/s"), Some(b"d"), b"x:/y")),
        (
            b"dafs://a,b:12050,[::1]:7/d/x,y",
            url(Scheme::Any, hosts(&[("a", DEFAULT_PORT), ("b", 12_050), ("::1", 7)]), Some(b"d"), b"x,y"),
        ),
        (b"dafs+tcp://a,a", url(Scheme::Tcp, hosts(&[("a", DEFAULT_PORT); 2]), None, b"")),
        (
            b"dafs+verbs://[fe80::1%a,b],c:1",
            url(Scheme::Verbs, hosts(&[("fe80::1%a,b", DEFAULT_PORT), ("c", 1)]), None, b""),
        ),
        (b"dafs+sim://7/d/a", url(Scheme::Sim, Location::SimPort(7), Some(b"d"), b"a")),
        (b"dafs://h/d/%41?x#y z\n", url(Scheme::Any, host("h", DEFAULT_PORT), Some(b"d"), b"%41?x#y z\n")),
        (
            b"dafs://h/\xff\xfe/\x80/\xc3",
            url(Scheme::Any, host("h", DEFAULT_PORT), Some(b"\xff\xfe"), b"\x80/\xc3"),
        ),
    ];
    for (text, expected) in cases {
        assert_eq!(parse(text).as_ref(), Ok(&expected), "{}", lossy(text));
        assert_eq!(parse(expected.to_os_string().as_bytes()), Ok(expected), "{}", lossy(text));
    }
}

// [PROV-79] [PROV-80] [PROV-81]
#[test]
fn url_with_fault_names_it() {
    let long = format!("dafs+shm:///{}", "x".repeat(SOCKET_PATH_SIZE_MAX));
    let many = format!("dafs://h{}", ",h".repeat(SERVERS_MAX));
    let cases: [(&[u8], Problem); 39] = [
        (b"dafs://,", Problem::EmptyServer),
        (b"dafs://a,/d", Problem::EmptyServer),
        (b"dafs://,a/d", Problem::EmptyServer),
        (b"dafs+tcp://a,,b/d", Problem::EmptyServer),
        (b"dafs+verbs://a:1,:2/d", Problem::NoHost),
        (b"dafs://a,b:0/d", Problem::PortZero),
        (b"dafs://a,::1/d", Problem::Brackets),
        (b"dafs+sim://1,2/d", Problem::SimPort("1,2".into())),
        (b"", Problem::NoScheme),
        (b"/tmp/file", Problem::NoScheme),
        (b"host:/data", Problem::NoScheme),
        (b"dafs:/host/data", Problem::NoScheme),
        (b"./a/dafs://h", Problem::NoScheme),
        (b"http://h/x", Problem::Scheme("http".into())),
        (b"DAFT://h/x", Problem::Scheme("DAFT".into())),
        (b"dafs://[fe80::1%25e%2]/d", Problem::Host("[fe80::1%25e%2]".into())),
        (b"dafs://[fe80::1%25e%zz]/d", Problem::Host("[fe80::1%25e%zz]".into())),
        (b"dafs://[fe80::1%25e%ff]/d", Problem::Host("[fe80::1%25e%ff]".into())),
        (b"tcp://h:1", Problem::ListenForm),
        (b"dafs://", Problem::NoHost),
        (b"dafs:///data/x", Problem::NoHost),
        (b"dafs://:1/data", Problem::NoHost),
        (b"dafs://h:/data", Problem::Port(String::new())),
        (b"dafs://h:+7/data", Problem::Port("+7".into())),
        (b"dafs://h:65536/data", Problem::Port("65536".into())),
        (b"dafs://h:99999999999999999999/d", Problem::Port("99999999999999999999".into())),
        (b"dafs://h:0/data", Problem::PortZero),
        (b"dafs://::1/data", Problem::Brackets),
        (b"dafs://[::1/data", Problem::Host("[::1".into())),
        (b"dafs://[::1]x/data", Problem::Host("[::1]x".into())),
        (b"dafs://[h]:1/data", Problem::Host("[h]:1".into())),
        (b"dafs://user@h/data", Problem::Host("user@h".into())),
        (b"dafs://h//x", Problem::EmptyExport),
        (b"dafs+shm://tmp/s:/d", Problem::SocketRelative),
        (b"dafs+shm:///:/d", Problem::SocketRoot),
        (b"dafs+shm:///tmp/s:d/x", Problem::SocketColonTail),
        (b"dafs+shm:///tmp/s:", Problem::SocketColonTail),
        (b"dafs://h/d/a\0b", Problem::Nul),
        (b"dafs+sim://x/d", Problem::SimPort("x".into())),
    ];
    for (text, problem) in cases {
        assert_eq!(parse(text), Err(problem), "{}", lossy(text));
    }
    assert_eq!(parse(many.as_bytes()), Err(Problem::ServersMany(SERVERS_MAX + 1)));
    assert!(parse(&many.as_bytes()[..many.len() - 2]).is_ok());
    assert_eq!(parse_listen("tcp://a,b"), Err(Problem::ListenSeveral));
    assert_eq!(parse(long.as_bytes()), Err(Problem::SocketLong(SOCKET_PATH_SIZE_MAX + 1)));
    assert!(parse(&long.as_bytes()[..long.len() - 1]).is_ok());
}

#[test]
fn address_error_shows_text_problem_and_example() {
    let error = Url::parse(OsStr::new("dafs+shm:///tmp/s:d")).unwrap_err().to_string();
    assert!(error.contains("\"dafs+shm:///tmp/s:d\""), "{error}");
    assert!(error.contains("colon"), "{error}");
    assert!(error.ends_with("dafs+shm:///run/dafs.sock:/export/path"), "{error}");
}

#[test]
fn examples_in_errors_are_valid() {
    for scheme in [Scheme::Any, Scheme::Tcp, Scheme::Shm, Scheme::Verbs, Scheme::Sim] {
        assert_eq!(Url::parse(OsStr::new(scheme.row().1)).map(|url| url.scheme), Ok(scheme));
        assert!(ListenUrl::parse(OsStr::new(scheme.row().2)).is_ok());
    }
}

// [PROV-78] [PROV-79]
#[test]
fn listen_url_of_every_form_is_read() {
    let listen = |scheme, location| Ok(ListenUrl { scheme, location });
    assert_eq!(parse_listen("tcp://127.0.0.1:0"), listen(Scheme::Tcp, host("127.0.0.1", 0)));
    assert_eq!(parse_listen("dafs+tcp://127.0.0.1:0"), listen(Scheme::Tcp, host("127.0.0.1", 0)));
    assert_eq!(parse_listen("tcp://[::1]:7"), listen(Scheme::Tcp, host("::1", 7)));
    assert_eq!(parse_listen("tcp://h"), listen(Scheme::Tcp, host("h", DEFAULT_PORT)));
    assert_eq!(parse_listen("verbs://h"), listen(Scheme::Verbs, host("h", DEFAULT_PORT)));
    assert_eq!(
        parse_listen("shm:///tmp/dafs.sock"),
        listen(Scheme::Shm, Location::Socket("/tmp/dafs.sock".into()))
    );
    assert_eq!(parse_listen("sim://3"), listen(Scheme::Sim, Location::SimPort(3)));
}

// [PROV-80] [PROV-81]
#[test]
fn listen_url_with_fault_names_it() {
    let cases = [
        ("127.0.0.1:0", Problem::NoListenScheme),
        ("dafs://h:1", Problem::ListenAny),
        ("udp://h:1", Problem::ListenScheme("udp".into())),
        ("tcp://h:1/data", Problem::ListenPath),
        ("tcp://:1", Problem::NoHost),
        ("shm://tmp/s", Problem::SocketRelative),
        ("shm:///tmp/s:/d", Problem::SocketColon),
        ("shm:///tmp/s\0", Problem::Nul),
    ];
    for (text, problem) in cases {
        assert_eq!(parse_listen(text), Err(problem), "{text}");
    }
}

#[test]
fn resolve_answers_all_kinds() {
    let resolved = |text: &str| Url::parse(OsStr::new(text)).unwrap().resolve();
    assert_eq!(resolved("dafs://127.0.0.1:7/d").unwrap(), [Address::Tcp("127.0.0.1:7".parse().unwrap())]);
    assert_eq!(resolved("dafs+tcp://[::1]:7").unwrap(), [Address::Tcp("[::1]:7".parse().unwrap())]);
    assert_eq!(resolved("dafs+shm:///s:/d").unwrap(), [Address::Shm("/s".into())]);
    assert_eq!(resolved("dafs+sim://4").unwrap(), [Address::Sim(4)]);
    let verbs = Address::Verbs("192.0.2.1:7".parse().unwrap());
    assert_eq!(resolved("dafs+verbs://192.0.2.1:7/d").unwrap(), [verbs]);
}

// [PROV-94]
#[test]
fn localhost_that_the_system_does_not_resolve_is_loopback() {
    let unknown = || Err(io::Error::from(io::ErrorKind::NotFound));
    let loopback = ["127.0.0.1:7".parse().unwrap(), "[::1]:7".parse().unwrap()];
    assert_eq!(or_loopback("localhost", 7, unknown()).unwrap(), loopback);
    assert_eq!(or_loopback("LocalHost", 7, unknown()).unwrap(), loopback);
    assert!(or_loopback("localhost.example", 7, unknown()).is_err());
    let other = vec!["127.0.0.2:7".parse().unwrap()];
    assert_eq!(or_loopback("localhost", 7, Ok(other.clone())).unwrap(), other);
}

#[test]
fn address_shown_is_a_url_of_the_same_server() {
    for address in [
        Address::Tcp("[::1]:7".parse().unwrap()),
        Address::Verbs("[2001:db8::1]:7".parse().unwrap()),
        Address::Shm("/tmp/s".into()),
        Address::Sim(9),
    ] {
        let url = Url::parse(OsStr::new(&address.to_string())).unwrap();
        assert_eq!(url.resolve().unwrap(), [address]);
    }
}

proptest::proptest! {
    #[test]
    fn url_from_any_bytes_never_panics_and_rewrites_to_itself(
        prefix in proptest::sample::select(vec!["", "dafs://", "dafs+tcp://", "dafs+shm://", "dafs+sim://", "dafs+shm:///"]),
        tail in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..40),
    ) {
        let text = [prefix.as_bytes(), &tail].concat();
        let _ = ListenUrl::parse(OsStr::from_bytes(&text));
        if let Ok(url) = Url::parse(OsStr::from_bytes(&text)) {
            proptest::prop_assert_eq!(Url::parse(&url.to_os_string()), Ok(url));
        }
    }

    // [PROV-96]
    #[test]
    fn url_of_any_servers_rewrites_to_itself(
        scheme in proptest::sample::select(vec!["dafs", "dafs+tcp", "dafs+verbs"]),
        hosts in proptest::collection::vec("([a-c.]{1,3}|\\[::[1-9]\\]|\\[fe80::1%[a-c,%]{1,3}\\])(:[1-9]{1,4})?", 1..=SERVERS_MAX),
        tail in "(/[a-c,:]{1,5}(/[a-c,:/]{0,5})?)?",
    ) {
        let text = format!("{scheme}://{}{tail}", hosts.join(","));
        let url = Url::parse(OsStr::new(&text)).unwrap();
        proptest::prop_assert_eq!(url.location.servers().len(), hosts.len());
        proptest::prop_assert_eq!(Url::parse(&url.to_os_string()), Ok(url));
    }
}
