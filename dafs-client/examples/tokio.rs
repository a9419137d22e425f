//! Reads several files at once, in tasks of tokio, without a thread of the library's. Usage: `tokio SERVER EXPORT FILE…`, for instance
//! `tokio dafs://localhost data f g`.

use dafs_client::{Background, Config, Session};

const READ_SIZE: usize = 64 * 1024;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    runtime.block_on(run())
}

async fn run() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(server), Some(export)) = (arguments.next(), arguments.next()) else {
        return Err("usage: tokio SERVER EXPORT FILE…".into());
    };
    // These block; a program with other tasks does it before those, or in `spawn_blocking`.
    let config = Config { background: Background::None, ..Config::default() };
    let session = Session::connect(server, &config)?;
    let export = session.mount(&export)?;
    let driver = tokio::spawn(session.drive()?);
    let mut tasks = Vec::new();
    for path in arguments {
        let file = export.open(&path)?;
        tasks.push(tokio::spawn(async move {
            let (mut buffer, mut offset) = (vec![0; READ_SIZE], 0);
            loop {
                let (count, back) = file.submit_read_at(buffer, offset).await.into_result()?;
                if count == 0 {
                    return dafs_client::Result::Ok((path, offset));
                }
                (buffer, offset) = (back, offset + count as u64);
            }
        }));
    }
    for task in tasks {
        let (path, size) = task.await??;
        println!("{path}: {size} bytes");
    }
    session.close();
    driver.await??;
    Ok(())
}
