//! The limit: bare sockets, one over the link of each server, all at once.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::{Barrier, mpsc};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};

use crate::links::Host;
use crate::record::Op;

/// What each end gives the kernel at once.
const BLOCK_BYTES: usize = 1 << 20;

/// MiB/s that sockets move from the hosts (reads), or to them (writes), all at once.
pub(super) fn mib_per_s(hosts: &[Host], op: Op, duration: Duration) -> anyhow::Result<f64> {
    let start = Barrier::new(hosts.len());
    std::thread::scope(|scope| {
        let mut links = Vec::new();
        for host in hosts {
            let (tell, told) = mpsc::channel();
            let server = scope.spawn(move || serve(host, op, &tell));
            let start = &start;
            let client = scope.spawn(move || {
                // Who is not told waits for nobody.
                let stream = told.recv().context("no socket").and_then(|port| connect(host.address, port));
                start.wait();
                stream.and_then(|stream| ask(stream, op, duration))
            });
            links.push((server, client));
        }
        let mut rate = 0.0;
        for (server, client) in links {
            let moved = client.join().map_err(|_| anyhow!("a socket's thread panicked"))?;
            server.join().map_err(|_| anyhow!("a socket's thread panicked"))??;
            rate += moved?;
        }
        Ok(rate)
    })
}

fn connect(address: Ipv4Addr, port: u16) -> anyhow::Result<TcpStream> {
    TcpStream::connect((address, port)).context("cannot connect a socket")
}

/// The host's end: sends until the other end closes, or takes all there is and says how much that was.
fn serve(host: &Host, op: Op, tell: &mpsc::Sender<u16>) -> anyhow::Result<()> {
    host.enter()?;
    let listener = TcpListener::bind((host.address, 0))?;
    tell.send(listener.local_addr()?.port())?;
    let (mut stream, _) = listener.accept()?;
    let mut block = vec![1; BLOCK_BYTES];
    if op == Op::Read {
        while stream.write_all(&block).is_ok() {}
        return Ok(());
    }
    let mut taken = 0u64;
    loop {
        match stream.read(&mut block)? {
            0 => break,
            count => taken += count as u64,
        }
    }
    Ok(stream.write_all(&taken.to_le_bytes())?)
}

/// The client's end; MiB/s.
fn ask(mut stream: TcpStream, op: Op, duration: Duration) -> anyhow::Result<f64> {
    let mut block = vec![1; BLOCK_BYTES];
    let (began, mut moved) = (Instant::now(), 0u64);
    while began.elapsed() < duration {
        match op {
            Op::Read => moved += stream.read(&mut block)? as u64,
            _ => stream.write_all(&block)?,
        }
    }
    if op != Op::Read {
        stream.shutdown(std::net::Shutdown::Write)?;
        let mut taken = [0; 8];
        stream.read_exact(&mut taken)?;
        moved = u64::from_le_bytes(taken);
    }
    Ok(moved as f64 / (1 << 20) as f64 / began.elapsed().as_secs_f64())
}
