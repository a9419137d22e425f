//! Copies a local file to a server, so that it survives a restart of the server on the way.
//!
//! ```text
//! cargo run --example copy -- FILE dafs+tcp://127.0.0.1:12049/data/file
//! ```

use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;

use dafs_client::{Config, DurableWriter, Session, Url};

const BLOCK: usize = 1 << 20;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args_os().skip(1);
    let (Some(source), Some(target)) = (arguments.next(), arguments.next()) else {
        return Err("usage: copy FILE dafs://host/export/file".into());
    };
    let url = Url::parse(&target)?;
    let export = std::str::from_utf8(url.export.as_deref().ok_or("the address names no export")?)?;
    let session = Session::connect_url(&url, &Config::default())?;
    let file = session.mount(export)?.create(OsStr::from_bytes(&url.path))?;

    let mut source = std::fs::File::open(source)?;
    // Holds copies of what is not yet durable, 64 MiB at most, and writes again what a restart loses.
    let mut writer = DurableWriter::new(&file, 64 << 20);
    let (mut block, mut offset) = (vec![0; BLOCK], 0);
    loop {
        let count = source.read(&mut block)?;
        if count == 0 {
            break;
        }
        writer.write_all_at(&block[..count], offset)?;
        offset += count as u64;
    }
    writer.commit()?;
    println!("{offset} bytes copied");
    Ok(())
}
