//! Reads a file with many reads in flight, in an event loop of mio, without a thread of the library's. Usage: `mio SERVER EXPORT FILE`, for
//! instance `mio dafs://localhost data f`.
//!
//! A program has its other sources in the same `Poll`, and takes the session's turns when the session's token comes.

use std::collections::HashMap;
use std::os::fd::AsRawFd;

use dafs_client::{Background, Config, Session};
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};

const READ_SIZE: usize = 64 * 1024;
const IN_FLIGHT_MAX: usize = 16;
const SESSION: Token = Token(0);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(server), Some(export), Some(path)) = (arguments.next(), arguments.next(), arguments.next())
    else {
        return Err("usage: mio SERVER EXPORT FILE".into());
    };
    let config = Config { background: Background::None, ..Config::default() };
    let session = Session::connect(server, &config)?;
    let file = session.mount(&export)?.open(path)?;
    let size = file.metadata()?.size;

    let completions = session.completions()?;
    let mut poll = Poll::new()?;
    let mut events = Events::with_capacity(16);
    poll.registry().register(&mut SourceFd(&completions.as_raw_fd()), SESSION, Interest::READABLE)?;

    let mut in_flight = HashMap::new();
    let (mut next_offset, mut total) = (0, 0);
    loop {
        while next_offset < size && in_flight.len() < IN_FLIGHT_MAX {
            let read = file.submit_read_at(vec![0; READ_SIZE], next_offset);
            next_offset += READ_SIZE as u64;
            match read.id() {
                Some(id) => drop(in_flight.insert(id, read)),
                // It has ended already.
                None => total += read.wait().into_result()?.0,
            }
        }
        // mio tells of changes alone: all that there is has to be done before the next poll.
        while completions.turn() {}
        let before = in_flight.len();
        while let Some(id) = completions.next() {
            if let Some(read) = in_flight.remove(&id) {
                total += read.wait().into_result()?.0;
            }
        }
        if in_flight.is_empty() && next_offset >= size {
            break;
        }
        // Some have ended: others can be submitted.
        if in_flight.len() == before && completions.arm()? {
            poll.poll(&mut events, None)?;
        }
    }
    println!("{total} bytes read, {size} in the file");
    Ok(())
}
