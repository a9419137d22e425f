//! A long line: a relay on loopback that hands bytes on as they came, some time later.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use anyhow::Context;

/// Pieces that are on the way in one direction at most; then the line takes no more.
const ON_THE_WAY_MAX: usize = 4096;

/// Largest piece, bytes.
const PIECE_SIZE: usize = 64 << 10;

/// A line to a server. It takes connections as long as the process lives.
#[derive(Debug)]
pub struct Line {
    near_end: SocketAddr,
}

/// Bytes on the way; none at the end.
struct Piece {
    due: Instant,
    bytes: Vec<u8>,
}

impl Line {
    /// A line to `far_end`, over which bytes take `delay` in each direction.
    ///
    /// # Errors
    /// Where no port can be had.
    pub fn to(far_end: SocketAddr, delay: Duration) -> anyhow::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("cannot make a line")?;
        let near_end = listener.local_addr()?;
        std::thread::Builder::new().name("line".into()).spawn(move || {
            for near in listener.incoming().flatten() {
                // Whoever connected sees that the other end is gone.
                let Ok(far) = TcpStream::connect(far_end) else { continue };
                for (from, to) in [(&near, &far), (&far, &near)] {
                    let carried = from.try_clone().and_then(|from| Ok((from, to.try_clone()?)));
                    let Ok((from, to)) = carried else { continue };
                    carry(from, to, delay);
                }
            }
        })?;
        Ok(Self { near_end })
    }

    /// Where clients connect to.
    pub fn near_end(&self) -> SocketAddr {
        self.near_end
    }
}

/// Carries bytes in one direction, by two threads.
fn carry(from: TcpStream, to: TcpStream, delay: Duration) {
    let (enter, leave) = sync_channel(ON_THE_WAY_MAX);
    let _ = to.set_nodelay(true);
    std::thread::spawn(move || take(from, delay, &enter));
    std::thread::spawn(move || hand_on(to, &leave));
}

fn take(mut from: TcpStream, delay: Duration, enter: &SyncSender<Piece>) {
    let mut buffer = vec![0; PIECE_SIZE];
    loop {
        let count = from.read(&mut buffer).unwrap_or(0);
        let piece = Piece { due: Instant::now() + delay, bytes: buffer[..count].to_vec() };
        if enter.send(piece).is_err() || count == 0 {
            let _ = from.shutdown(Shutdown::Read);
            return;
        }
    }
}

fn hand_on(mut to: TcpStream, leave: &Receiver<Piece>) {
    while let Ok(Piece { due, bytes }) = leave.recv() {
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        if bytes.is_empty() || to.write_all(&bytes).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_whole_in_both_directions_and_not_before_their_time() {
        let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let delay = Duration::from_millis(20);
        let line = Line::to(server.local_addr().unwrap(), delay).unwrap();
        let sent: Vec<u8> = (0..300_000u32).map(|at| (at % 251) as u8).collect();
        let echo = std::thread::spawn(move || {
            let (mut connection, _) = server.accept().unwrap();
            let mut all = Vec::new();
            connection.read_to_end(&mut all).unwrap();
            connection.write_all(&all).unwrap();
        });
        let mut client = TcpStream::connect(line.near_end()).unwrap();
        let began = Instant::now();
        client.write_all(&sent).unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let mut back = Vec::new();
        client.read_to_end(&mut back).unwrap();
        assert!(began.elapsed() >= 2 * delay);
        assert!(back == sent);
        echo.join().unwrap();
    }
}
