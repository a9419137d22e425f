//! The coordination store: an etcd of one member or several.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use crate::port::Port;
use crate::program::{Signal, signal};

/// Its members are killed when this is dropped.
pub struct Etcd {
    members: Vec<Member>,
    _directory: tempfile::TempDir,
}

struct Member {
    child: Child,
    port: Port,
    /// Where it says how it is, in the clear.
    health: Option<Port>,
    arguments: Vec<String>,
    log: PathBuf,
}

impl Etcd {
    /// With so many members.
    pub fn start(count: usize) -> Self {
        Self::start_with(count, &[], false)
    }

    /// The same with these flags besides; clients come over TLS.
    pub fn start_with(count: usize, more: &[&str], is_secure: bool) -> Self {
        let scheme = if is_secure { "https" } else { "http" };
        let directory = tempfile::tempdir().unwrap();
        let ports: Vec<(Port, Port)> = (0..count).map(|_| (Port::new(), Port::new())).collect();
        let all: Vec<String> = ports
            .iter()
            .enumerate()
            .map(|(number, (_, peers))| format!("m{number}=http://{}", peers.address()))
            .collect();
        let start = |(number, (port, peers)): (usize, (Port, Port))| {
            let (client, peer) = (port.address(), peers.address());
            let data = directory.path().join(format!("m{number}"));
            let arguments = format!(
                "--name m{number} --data-dir {} --listen-client-urls {scheme}://0.0.0.0:{} --advertise-client-urls {scheme}://{client} \
                 --listen-peer-urls http://{peer} --initial-advertise-peer-urls http://{peer} --initial-cluster {}",
                data.display(),
                client.port(),
                all.join(",")
            );
            let mut arguments: Vec<String> = arguments.split(' ').map(str::to_owned).collect();
            arguments.extend(more.iter().map(|flag| (*flag).to_owned()));
            let health = is_secure.then(Port::new);
            if let Some(health) = &health {
                arguments.push(format!("--listen-metrics-urls=http://{}", health.address()));
            }
            let log = directory.path().join(format!("m{number}.log"));
            let child = launch(&arguments, &log);
            Member { child, port, health, arguments, log }
        };
        let members = ports.into_iter().enumerate().map(start).collect();
        let etcd = Self { members, _directory: directory };
        (0..count).for_each(|number| etcd.await_answer(number));
        etcd
    }

    /// `host:port` of each member.
    pub fn members(&self) -> String {
        self.members_at(Ipv4Addr::LOCALHOST.into())
    }

    /// The same, by another address of their host.
    pub fn members_at(&self, host: IpAddr) -> String {
        let at = |member: &Member| format!("{host}:{}", member.port.address().port());
        self.members.iter().map(at).collect::<Vec<_>>().join(",")
    }

    /// It answers nobody until it goes on.
    pub fn stop(&self) {
        self.members.iter().for_each(|member| signal(member.child.id(), Signal::STOP).unwrap());
    }

    /// It answers again.
    pub fn go_on(&self) {
        self.members.iter().for_each(|member| signal(member.child.id(), Signal::CONT).unwrap());
    }

    /// Kills a member and starts it again with what it has kept.
    pub fn kill_and_start(&mut self, number: usize) {
        self.kill(number);
        let member = &mut self.members[number];
        member.child = launch(&member.arguments, &member.log);
        self.await_answer(number);
    }

    fn kill(&mut self, number: usize) {
        self.members[number].child.kill().unwrap();
        self.members[number].child.wait().unwrap();
    }

    /// The member that leads.
    pub fn leader(&self) -> usize {
        let leads = |number: &usize| {
            let said = self.call(*number, "/v3/maintenance/status", "{}").unwrap_or_default();
            let field = |name: &str| {
                let (_, rest) = said.split_once(&format!("\"{name}\":\""))?;
                rest.split_once('"').map(|(value, _)| value.to_owned())
            };
            field("leader").is_some_and(|leader| Some(leader) == field("member_id"))
        };
        loop {
            if let Some(leader) = (0..self.members.len()).find(leads) {
                return leader;
            }
        }
    }

    /// It says that it has no room, or has again: what it does when its quota is used up.
    pub fn set_full(&self, is_full: bool) {
        let action = if is_full { "ACTIVATE" } else { "DEACTIVATE" };
        let body = format!(r#"{{"action":"{action}","memberID":"{}","alarm":"NOSPACE"}}"#, self.id());
        let said = self.call(0, "/v3/maintenance/alarm", &body).unwrap();
        assert!(said.contains("200 OK"), "{said}");
    }

    /// Waits until no operation of the cluster `test` is under way.
    pub fn await_nothing_pending(&self) {
        // From /dafs/test/pending/ on, to before /dafs/test/pending0.
        let body = r#"{"key":"L2RhZnMvdGVzdC9wZW5kaW5nLw==","range_end":"L2RhZnMvdGVzdC9wZW5kaW5nMA==","count_only":true}"#;
        while self.call(0, "/v3/kv/range", body).unwrap().contains("\"count\"") {}
    }

    fn id(&self) -> String {
        let said = self.call(0, "/v3/maintenance/status", "{}").unwrap();
        said.split_once("\"member_id\":\"").unwrap().1.split_once('"').unwrap().0.to_owned()
    }

    fn await_answer(&self, number: usize) {
        // It has a leader.
        let member = &self.members[number];
        let port = member.health.as_ref().unwrap_or(&member.port);
        while !call(port, "/health", "").is_ok_and(|said| said.contains("\"true\"")) {
            std::thread::yield_now();
        }
    }

    /// Has a user `dafs` who may change what is of the cluster `test`, and asks for one from then on.
    pub fn want_user(&self, password: &str) {
        let range = r#""key":"L2RhZnMvdGVzdC8=","range_end":"L2RhZnMvdGVzdDA=""#;
        for (path, body) in [
            ("user/add", r#"{"name":"root","password":"root"}"#.to_owned()),
            ("role/add", r#"{"name":"root"}"#.to_owned()),
            ("user/grant", r#"{"user":"root","role":"root"}"#.to_owned()),
            ("user/add", format!(r#"{{"name":"dafs","password":"{password}"}}"#)),
            ("role/add", r#"{"name":"dafs"}"#.to_owned()),
            ("role/grant", format!(r#"{{"name":"dafs","perm":{{"permType":"READWRITE",{range}}}}}"#)),
            ("user/grant", r#"{"user":"dafs","role":"dafs"}"#.to_owned()),
            ("enable", "{}".to_owned()),
        ] {
            let said = self.call(0, &format!("/v3/auth/{path}"), &body).unwrap();
            assert!(said.contains("200 OK"), "{path}: {said}");
        }
    }

    fn call(&self, number: usize, path: &str, body: &str) -> std::io::Result<String> {
        call(&self.members[number].port, path, body)
    }
}

fn call(port: &Port, path: &str, body: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(port.address())?;
    let method = if body.is_empty() { "GET" } else { "POST" };
    write!(stream, "{method} {path} HTTP/1.0\r\nContent-Length: {}\r\n\r\n{body}", body.len())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

fn launch(arguments: &[String], log: &std::path::Path) -> Child {
    let log = File::options().create(true).append(true).open(log).unwrap();
    Command::new("etcd").args(arguments).stdout(Stdio::null()).stderr(log).spawn().unwrap()
}

impl Drop for Etcd {
    fn drop(&mut self) {
        for member in &mut self.members {
            // It may have ended by itself.
            let _ = member.child.kill();
            let _ = member.child.wait();
        }
    }
}
