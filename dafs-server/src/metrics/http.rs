//! HTTP/1.0, as much as a collector of metrics needs: `GET /metrics`, one answer, closed.
//!
//! Nothing waits. At most [`CONNECTIONS_MAX`] clients are served at once, each sends at most [`REQUEST_SIZE_MAX`]
//! bytes and is gone after [`REQUEST_TIME_MAX`], however slowly it sends or reads.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::time::{Duration, Instant};

use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token};

/// Clients served at once; more are turned away.
pub const CONNECTIONS_MAX: usize = 16;
/// Bytes of a request at most.
pub const REQUEST_SIZE_MAX: usize = 4096;
/// From the first byte to the last of an answer.
pub const REQUEST_TIME_MAX: Duration = Duration::from_secs(10);

/// Rounds of events in one call, and connections that are taken in one round: whoever serves has others to serve.
const ROUNDS_MAX: usize = 2;
const ACCEPTS_MAX: usize = 32;

const LISTENER: Token = Token(CONNECTIONS_MAX);

/// Answers `GET /metrics`.
#[derive(Debug)]
pub struct MetricsServer {
    poll: Poll,
    events: Events,
    listener: TcpListener,
    clients: [Option<Client>; CONNECTIONS_MAX],
    /// More connections may wait, of which no event tells again.
    more_wait: bool,
}

#[derive(Debug)]
struct Client {
    stream: TcpStream,
    since: Instant,
    request: Vec<u8>,
    // Once the request is complete; what has been sent is cut off.
    answer: Option<Vec<u8>>,
}

impl MetricsServer {
    /// Listens. A port of 0 takes any free one.
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        let poll = Poll::new()?;
        let mut listener = TcpListener::bind(address)?;
        poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
        let (events, clients) = (Events::with_capacity(32), Default::default());
        Ok(Self { poll, events, listener, clients, more_wait: false })
    }

    /// Where it listens.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Takes clients as far as they can be taken now, within bounds; the next call goes on. `metrics` is asked for each complete request.
    /// Not blocking; to be called after an event, and about once a second so that clients that stall are dropped.
    pub fn serve(&mut self, now: Instant, mut metrics: impl FnMut() -> String) -> io::Result<()> {
        for slot in &mut self.clients {
            if slot
                .as_ref()
                .is_some_and(|client| now.saturating_duration_since(client.since) >= REQUEST_TIME_MAX)
            {
                *slot = None;
            }
        }
        for _ in 0..ROUNDS_MAX {
            match self.poll.poll(&mut self.events, Some(Duration::ZERO)) {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                result => result?,
            }
            for event in &self.events {
                match self.clients.get_mut(event.token().0) {
                    // An error concerns this client alone.
                    Some(slot) => {
                        let over =
                            slot.as_mut().is_none_or(|client| client.advance(&mut metrics).unwrap_or(true));
                        if over {
                            *slot = None;
                        }
                    }
                    None => self.more_wait = true,
                }
            }
            if self.more_wait {
                self.more_wait = self.accept(now);
            }
        }
        Ok(())
    }

    /// Takes connections that wait; whether more may.
    fn accept(&mut self, now: Instant) -> bool {
        for _ in 0..ACCEPTS_MAX {
            let mut stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return false,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                // The client gave up, or the process has no descriptor left: the next one that comes is tried again.
                Err(error) => {
                    tracing::debug!(%error, "cannot accept a connection for metrics");
                    return false;
                }
            };
            let Some(index) = self.clients.iter().position(Option::is_none) else { continue };
            let interest = Interest::READABLE | Interest::WRITABLE;
            if self.poll.registry().register(&mut stream, Token(index), interest).is_ok() {
                self.clients[index] =
                    Some(Client { stream, since: now, request: Vec::with_capacity(512), answer: None });
            }
        }
        true
    }
}

impl Client {
    /// Reads what is there and sends what fits; whether it is over.
    fn advance(&mut self, metrics: &mut impl FnMut() -> String) -> io::Result<bool> {
        let mut ended = false;
        while self.answer.is_none() && !ended {
            let mut bytes = [0; 512];
            match self.stream.read(&mut bytes) {
                Ok(0) => ended = true,
                Ok(size) => self.request.extend(&bytes[..size]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            self.answer = answer(&self.request, metrics);
        }
        let Some(answer) = &mut self.answer else { return Ok(true) };
        while !answer.is_empty() {
            match self.stream.write(answer) {
                Ok(0) => return Ok(true),
                Ok(size) => drop(answer.drain(..size)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.stream.shutdown(Shutdown::Write)?;
        Ok(true)
    }
}

/// The answer to a request, once its head is complete or cannot become so.
fn answer(request: &[u8], metrics: &mut impl FnMut() -> String) -> Option<Vec<u8>> {
    let complete =
        request.windows(4).any(|end| end == b"\r\n\r\n") || request.windows(2).any(|end| end == b"\n\n");
    if !complete {
        let too_large = request.len() > REQUEST_SIZE_MAX;
        return too_large
            .then(|| response("431 Request Header Fields Too Large", "the request is too large\n"));
    }
    let line = request.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let mut words = line.split(|byte| byte.is_ascii_whitespace()).filter(|word| !word.is_empty());
    let (method, target) = (words.next(), words.next().unwrap_or_default());
    let path = target.split(|byte| *byte == b'?').next().unwrap_or_default();
    Some(match (method, path) {
        (Some(b"GET"), b"/metrics") => response("200 OK", &metrics()),
        (Some(b"GET"), _) => response("404 Not Found", "there is only /metrics\n"),
        _ => response("405 Method Not Allowed", "only GET is served\n"),
    })
}

fn response(status: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!(
        "HTTP/1.0 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n\
         Content-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    )
    .into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net;

    fn server() -> MetricsServer {
        MetricsServer::bind("127.0.0.1:0".parse().unwrap()).unwrap()
    }

    fn connect(server: &MetricsServer) -> net::TcpStream {
        let stream = net::TcpStream::connect(server.address().unwrap()).unwrap();
        stream.set_nonblocking(true).unwrap();
        stream
    }

    /// Drives the server until the client sees the end.
    fn read_all(server: &mut MetricsServer, stream: &mut net::TcpStream, body: &str) -> String {
        let mut bytes = Vec::new();
        loop {
            server.serve(Instant::now(), || body.to_owned()).unwrap();
            match stream.read_to_end(&mut bytes) {
                Ok(_) => return String::from_utf8(bytes).unwrap(),
                Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::yield_now(),
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return String::new(),
                Err(error) => panic!("{error}"),
            }
        }
    }

    fn ask(request: &str, body: &str) -> String {
        let mut server = server();
        let mut stream = connect(&server);
        stream.write_all(request.as_bytes()).unwrap();
        read_all(&mut server, &mut stream, body)
    }

    #[test]
    fn metrics_are_answered_whole() {
        let body = "dafs_sessions 1\n".repeat(100_000);
        let answer = ask("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", &body);
        let (head, seen) = answer.split_once("\r\n\r\n").unwrap();
        assert!(
            head.starts_with("HTTP/1.0 200 OK\r\n")
                && head.contains(&format!("Content-Length: {}", body.len()))
        );
        assert!(seen == body);
    }

    #[test]
    fn request_for_anything_else_is_refused() {
        for (request, status) in [
            ("GET / HTTP/1.0\r\n\r\n", "404"),
            ("GET /metricsx HTTP/1.0\n\n", "404"),
            ("POST /metrics HTTP/1.0\r\n\r\n", "405"),
            ("\r\n\r\n", "405"),
            ("\u{0}\u{1}\n\n", "405"),
        ] {
            let answer = ask(request, "secret");
            assert!(
                answer.starts_with(&format!("HTTP/1.0 {status} ")) && !answer.contains("secret"),
                "{answer}"
            );
        }
    }

    // [ACC-101]
    #[test]
    fn request_at_the_size_limit_waits_for_its_end() {
        let mut never = || String::new();
        assert_eq!(answer(&vec![b'x'; REQUEST_SIZE_MAX], &mut never), None);
        let refused = answer(&vec![b'x'; REQUEST_SIZE_MAX + 1], &mut never).unwrap();
        assert!(refused.starts_with(b"HTTP/1.0 431 "));
    }

    // [ACC-100]
    #[test]
    fn request_byte_by_byte_is_answered() {
        let mut server = server();
        let mut stream = connect(&server);
        for byte in b"GET /metrics HTTP/1.0\r\n\r\n" {
            stream.write_all(&[*byte]).unwrap();
            server.serve(Instant::now(), || "x".into()).unwrap();
        }
        assert!(read_all(&mut server, &mut stream, "x").ends_with("\r\n\r\nx"));
    }

    // [ACC-147]
    #[test]
    fn connections_beyond_those_of_one_call_are_taken_by_the_next() {
        let mut server = server();
        let bound = ROUNDS_MAX * ACCEPTS_MAX;
        let mut streams: Vec<_> = (0..bound + 1).map(|_| connect(&server)).collect();
        server.serve(Instant::now(), String::new).unwrap();
        assert!(server.more_wait, "one is left");
        let mut is_closed = |index: usize| {
            let result: io::Result<usize> = streams[index].read(&mut [0]);
            result.is_ok() || result.is_err_and(|error| error.kind() == ErrorKind::ConnectionReset)
        };
        assert!(!is_closed(bound));
        server.serve(Instant::now(), String::new).unwrap();
        assert!(!server.more_wait, "none is left");
        // There is no room for it, which it is told.
        while !is_closed(bound) {
            std::thread::yield_now();
        }
    }

    // [ACC-51] [ACC-102]
    #[test]
    fn clients_that_stall_are_dropped_and_make_room() {
        let mut server = server();
        let begin = Instant::now();
        let stalled: Vec<_> = (0..CONNECTIONS_MAX).map(|_| connect(&server)).collect();
        while server.clients.iter().any(Option::is_none) {
            server.serve(begin, String::new).unwrap();
        }
        // The next one finds no room.
        let mut refused = connect(&server);
        assert_eq!(read_all(&mut server, &mut refused, "x"), "");

        server.serve(begin + REQUEST_TIME_MAX, String::new).unwrap();
        assert!(server.clients.iter().all(Option::is_none));
        let mut stream = connect(&server);
        stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
        assert!(read_all(&mut server, &mut stream, "x").starts_with("HTTP/1.0 200"));
        drop(stalled);
    }
}
