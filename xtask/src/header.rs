//! The C header of adio-dafs, made of its Rust source.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

const CRATE: &str = "adio-dafs";
const HEADER: &str = "adio-dafs/include/adio_dafs.h";

/// Writes the header anew; where it is.
pub(crate) fn write(root: &Path) -> Result<PathBuf> {
    let path = root.join(HEADER);
    std::fs::write(&path, generate(root)?).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path)
}

fn generate(root: &Path) -> Result<String> {
    let directory = root.join(CRATE);
    let sources = ["abi.rs", "mod.rs"].map(|name| directory.join("src/ffi").join(name));
    let config = cbindgen::Config::from_file(directory.join("cbindgen.toml"))
        .map_err(|error| anyhow::anyhow!("cannot read {}/cbindgen.toml: {error}", directory.display()))?;
    let builder = sources
        .iter()
        .fold(cbindgen::Builder::new().with_config(config), |builder, source| builder.with_src(source));
    let bindings = builder.generate().context("cannot make the header of adio-dafs")?;
    let mut text = Vec::new();
    bindings.write(&mut text);
    String::from_utf8(text).context("the header is no text")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_of_adio_dafs_is_that_of_its_source() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let committed = std::fs::read_to_string(root.join(HEADER)).unwrap();
        assert!(committed == generate(root).unwrap(), "{HEADER} is not current: run `cargo xtask header`");
    }
}
