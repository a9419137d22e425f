//! Reads a file with many reads in flight, in an event loop that sleeps in poll(2), without a thread of the library's. Other descriptors of
//! the program can be slept on beside that of the session. Usage: `poll SERVER EXPORT FILE`, for instance `poll dafs://localhost data f`.

use std::collections::HashMap;

use dafs_client::{Background, Config, Session};
use rustix::event::{PollFd, PollFlags, poll};

const READ_SIZE: usize = 64 * 1024;
const IN_FLIGHT_MAX: usize = 16;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(server), Some(export), Some(path)) = (arguments.next(), arguments.next(), arguments.next())
    else {
        return Err("usage: poll SERVER EXPORT FILE".into());
    };
    let config = Config { background: Background::None, ..Config::default() };
    let session = Session::connect(server, &config)?;
    let file = session.mount(&export)?.open(path)?;
    let size = file.metadata()?.size;

    let completions = session.completions()?;
    let mut in_flight = HashMap::new();
    let mut next_offset = 0;
    let mut total = 0;
    while next_offset < size || !in_flight.is_empty() {
        while next_offset < size && in_flight.len() < IN_FLIGHT_MAX {
            let read = file.submit_read_at(vec![0; READ_SIZE], next_offset);
            next_offset += READ_SIZE as u64;
            match read.id() {
                Some(id) => drop(in_flight.insert(id, read)),
                // It has ended already.
                None => total += read.wait().into_result()?.0,
            }
        }
        while completions.turn() {}
        while let Some(id) = completions.next() {
            if let Some(read) = in_flight.remove(&id) {
                total += read.wait().into_result()?.0;
            }
        }
        let must_wait = in_flight.len() == IN_FLIGHT_MAX || (next_offset >= size && !in_flight.is_empty());
        if must_wait && completions.arm()? {
            poll(&mut [PollFd::new(&completions, PollFlags::IN)], None)?;
        }
    }
    println!("{total} bytes read, {size} in the file");
    Ok(())
}
