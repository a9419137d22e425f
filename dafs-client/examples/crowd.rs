//! Many clients that start at once: how many get in, how long the last one takes, and what the others are told.
//!
//! ```text
//! cargo run --release --example crowd -- dafs+tcp://127.0.0.1:12049/data 5000 50
//! ```
//!
//! Each of 50 processes opens 100 sessions, each in a thread of its own, and keeps them until all have ended their attempt. The server
//! needs room for them: `--sessions-max`, and descriptors (`ulimit -n`), of which this program needs some too.

use std::collections::BTreeMap;
use std::error::Error;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::Barrier;
use std::time::{Duration, Instant};

use dafs_client::{Config, Session, Url};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |text: &String| text.parse::<usize>().map_err(|error| format!("{text}: {error}"));
    match arguments.as_slice() {
        [address, sessions, processes] => lead(address, number(sessions)?, number(processes)?.max(1)),
        [address, sessions] => follow(address, number(sessions)?),
        _ => Err("usage: crowd dafs://host/export SESSIONS PROCESSES".into()),
    }
}

/// Starts the processes, lets them go at once, and adds up what they tell.
fn lead(address: &str, sessions: usize, processes: usize) -> Result<(), Box<dyn Error>> {
    let mut children = Vec::new();
    for index in 0..processes {
        let share = sessions / processes + usize::from(index < sessions % processes);
        let mut command = Command::new(std::env::current_exe()?);
        command.args([address, &share.to_string()]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let output = BufReader::new(child.stdout.take().ok_or("no output")?);
        children.push((child, output));
    }
    let mut line = String::new();
    for (_, output) in &mut children {
        output.read_line(&mut line)?;
    }
    let start = Instant::now();
    for (child, _) in &mut children {
        go(child)?;
    }
    let (mut inside, mut last_ms, mut refusals) = (0, 0, BTreeMap::<String, usize>::new());
    for (_, output) in &mut children {
        loop {
            line.clear();
            output.read_line(&mut line)?;
            match line.trim_end().split_once(' ') {
                Some(("in", ms)) => (inside, last_ms) = (inside + 1, last_ms.max(ms.parse::<u128>()?)),
                Some(("refused", why)) => *refusals.entry(why.to_owned()).or_default() += 1,
                _ => break,
            }
        }
    }
    let took = start.elapsed();
    println!(
        "{inside} of {sessions} sessions are open; the last took {last_ms} ms, all ended after {took:.1?}"
    );
    for (why, count) in refusals {
        println!("{count} times: {why}");
    }
    for (mut child, _) in children {
        drop(child.stdin.take());
        child.wait()?;
    }
    Ok(())
}

fn go(child: &mut Child) -> std::io::Result<()> {
    std::io::Write::write_all(child.stdin.as_mut().ok_or(std::io::ErrorKind::BrokenPipe)?, b"\n")
}

/// Opens so many sessions at once, tells what became of each, and keeps them until its input ends.
fn follow(address: &str, sessions: usize) -> Result<(), Box<dyn Error>> {
    let url = Url::parse(address.as_ref())?;
    let export = std::str::from_utf8(url.export.as_deref().ok_or("the address names no export")?)?.to_owned();
    let barrier = Barrier::new(sessions + 1);
    let open = |start: &Instant| -> Result<(Session, Duration), dafs_client::Error> {
        let session = Session::connect_url(&url, &Config::default())?;
        session.mount(&export)?;
        Ok((session, start.elapsed()))
    };
    std::thread::scope(|scope| -> Result<(), Box<dyn Error>> {
        let open = || {
            barrier.wait();
            open(&Instant::now())
        };
        let threads: Vec<_> = (0..sessions).map(|_| scope.spawn(open)).collect();
        println!("ready");
        std::io::stdin().read_exact(&mut [0])?;
        barrier.wait();
        let mut kept = Vec::new();
        for thread in threads {
            match thread.join().map_err(|_| "a thread panicked")? {
                Ok((session, took)) => {
                    println!("in {}", took.as_millis());
                    kept.push(session);
                }
                Err(error) => println!("refused {error}"),
            }
        }
        println!("done");
        std::io::stdin().read_to_end(&mut Vec::new())?;
        Ok(())
    })
}
