//! The C headers, made of the Rust source of their crates.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::man::Group;

/// A crate with a C interface: where it is, its header, and the sources whose items are in that, in order.
struct Interface {
    directory: &'static str,
    header: &'static str,
    sources: &'static [&'static str],
    /// The list of the symbols that its shared library exports.
    symbols: Option<&'static str>,
}

const INTERFACES: [Interface; 2] = [
    Interface {
        directory: "adio-dafs",
        header: "include/adio_dafs.h",
        sources: &["src/ffi/abi.rs", "src/ffi/mod.rs"],
        symbols: None,
    },
    Interface {
        directory: "bindings/c",
        header: "include/dafs.h",
        sources: &[
            "src/abi.rs",
            "src/session.rs",
            "src/file.rs",
            "src/dir.rs",
            "src/attr.rs",
            "src/lock.rs",
            "src/memory.rs",
            "src/submit.rs",
            "src/op.rs",
            "src/chain.rs",
            "src/batch.rs",
            "src/view.rs",
        ],
        symbols: Some("dafs.map"),
    },
];

/// The functions of libdafs, by the sources that they are in; `abi.rs` has none.
pub(crate) fn groups(root: &Path) -> Result<Vec<Group>> {
    let named = |source: &&str| {
        Path::new(source).file_stem()?.to_str().filter(|name| *name != "abi").map(str::to_owned)
    };
    let mut groups = Vec::new();
    for interface in INTERFACES.iter().filter(|interface| interface.symbols.is_some()) {
        for source in interface.sources {
            let Some(name) = named(source) else { continue };
            let path = root.join(interface.directory).join(source);
            let text =
                std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
            groups.push(Group { name, about: about(&text), functions: crate::c::exported(&text) });
        }
    }
    Ok(groups)
}

/// The first sentence of what a source says of itself, without its end.
fn about(text: &str) -> String {
    let lines = text.lines().map_while(|line| line.strip_prefix("//! "));
    let said = lines.collect::<Vec<_>>().join(" ");
    let sentence = said.split_once(". ").map_or(said.as_str(), |(sentence, _)| sentence);
    sentence.trim_end_matches('.').to_owned()
}

/// Writes the headers and the list of symbols anew; where they are.
pub(crate) fn write(root: &Path) -> Result<Vec<PathBuf>> {
    let files = generate(root)?;
    for (path, text) in &files {
        std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(files.into_iter().map(|(path, _)| path).collect())
}

/// All that is made, and where it goes.
fn generate(root: &Path) -> Result<Vec<(PathBuf, String)>> {
    let mut files = Vec::new();
    for interface in &INTERFACES {
        files.push((root.join(interface.directory).join(interface.header), interface.generate(root)?));
        if let Some(symbols) = interface.symbols {
            let directory = root.join(interface.directory);
            let read =
                |source| std::fs::read_to_string(directory.join(source)).context("cannot read the sources");
            let sources: Vec<String> = interface.sources.iter().map(read).collect::<Result<_>>()?;
            files.push((directory.join(symbols), crate::c::symbols(sources.into_iter())));
        }
    }
    Ok(files)
}

impl Interface {
    fn generate(&self, root: &Path) -> Result<String> {
        let directory = root.join(self.directory);
        let config = cbindgen::Config::from_file(directory.join("cbindgen.toml"))
            .map_err(|error| anyhow::anyhow!("cannot read {}/cbindgen.toml: {error}", directory.display()))?;
        let sources = self.sources.iter().map(|source| directory.join(source));
        let builder = sources.fold(cbindgen::Builder::new().with_config(config), cbindgen::Builder::with_src);
        let bindings =
            builder.generate().with_context(|| format!("cannot make the header of {}", self.directory))?;
        let mut text = Vec::new();
        bindings.write(&mut text);
        String::from_utf8(text).context("the header is no text")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_says_what_its_functions_are_about() {
        assert_eq!(
            about("//! Open files: data,\n//! size. More.\n//!\n//! Else.\nuse x;\n"),
            "Open files: data, size"
        );
        assert_eq!(about("//! Locks.\n#![allow(x)]\n"), "Locks");
    }

    #[test]
    fn headers_are_those_of_their_sources() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        for (path, text) in generate(root).unwrap() {
            let committed = std::fs::read_to_string(&path).unwrap();
            assert!(committed == text, "{} is not current: run `cargo xtask header`", path.display());
        }
    }
}
