//! Connects, writes a file, reads it back.
//!
//! ```text
//! cargo run --example hello -- dafs+tcp://127.0.0.1:12049/data/hello.txt
//! ```

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use dafs_client::{Config, Session, Url};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let argument = std::env::args_os().nth(1).ok_or("usage: hello dafs://host/export/file")?;
    let url = Url::parse(&argument)?;
    let export = std::str::from_utf8(url.export.as_deref().ok_or("the address names no export")?)?;
    let path = OsStr::from_bytes(&url.path);

    let session = Session::connect_url(&url, &Config::default())?;
    println!("connected over {}: {}", session.provider(), session.provider_reason());

    let export = session.mount(export)?;
    let file = export.create(path)?;
    file.write_all_at(b"hello, world", 0)?;
    // Written data is durable from here on.
    file.commit()?;

    let mut text = [0; 12];
    file.read_exact_at(&mut text, 0)?;
    println!("read back: {}", String::from_utf8_lossy(&text));
    Ok(())
}
