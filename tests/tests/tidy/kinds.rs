//! Names of kinds that are asked for capabilities instead: who compares such a name has to be changed with each kind that is added.

use crate::source::{code_only, paths, without_tests};

/// Names, and the files that may use them: paths that begin so.
#[derive(Debug)]
pub(crate) struct Kind {
    /// Parts of paths.
    pub(crate) names: &'static [&'static str],
    /// Only files whose path begins with one of these.
    pub(crate) under: &'static [&'static str],
    /// Those of them that may.
    pub(crate) but: &'static [&'static str],
    /// What to do instead.
    pub(crate) instead: &'static str,
}

pub(crate) const KINDS: &[Kind] = &[
    Kind {
        names: &["ExportKind::Directory", "ExportKind::Memory"],
        under: &["dafs-server/src/"],
        // They make one of what was written.
        but: &["dafs-server/src/storage/kinds.rs", "dafs-server/src/config/export.rs"],
        instead: "ask ExportKind::capabilities",
    },
    Kind {
        names: &["super::posix", "super::mem", "storage::posix", "storage::mem"],
        under: &["dafs-server/src/"],
        but: &[
            "dafs-server/src/storage/kinds.rs",
            "dafs-server/src/storage/posix/",
            "dafs-server/src/storage/mem/",
        ],
        instead: "a backend is known by its traits, see storage/backend.rs",
    },
    Kind {
        names: &["Provider::Tcp", "Provider::Shm", "Provider::Verbs", "Provider::Sim"],
        under: &["adio-dafs/", "dafs-bench/", "dafs-cli/", "dafs-client/", "dafs-server/"],
        // It refuses to measure another than it was asked for.
        but: &["dafs-bench/src/subject/dafs.rs"],
        instead: "ask the domain, or the capabilities of the connection",
    },
];

/// Names of kinds in a file, outside its tests.
pub(crate) fn named(path: &str, text: &str, kind: &Kind) -> Vec<String> {
    let is_in = |places: &[&str]| places.iter().any(|place| path.starts_with(place));
    if !is_in(kind.under) || is_in(kind.but) {
        return Vec::new();
    }
    let has = |path: &str, name: &str| format!("::{path}::").contains(&format!("::{name}::"));
    let code = without_tests(&code_only(text));
    paths(&code)
        .into_iter()
        .filter(|(_, path)| kind.names.iter().any(|name| has(path, name)))
        .map(|(line, path)| format!("{line}: names {path}; {}", kind.instead))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIND: Kind = Kind {
        names: &["Provider::Tcp", "super::posix"],
        under: &["server/"],
        but: &["server/kinds.rs"],
        instead: "ask",
    };

    #[test]
    fn kind_that_is_compared_is_found() {
        let bad = "if a.provider() == Provider::Tcp {}\nmatches!(p, dafs::Provider::Tcp)\nuse super::posix::{A, sys};\n";
        let faults = named("server/a.rs", bad, &KIND);
        let lines: Vec<&str> = faults.iter().filter_map(|fault| fault.split(':').next()).collect();
        assert_eq!(lines, ["1", "2", "3", "3"], "{faults:?}");
        let good = "use a::Provider;\nProvider::TcpLike; x.superposix; // Provider::Tcp\n\
                    #[cfg(test)]\nmod tests { use super::posix; }\n";
        assert_eq!(named("server/a.rs", good, &KIND), Vec::<String>::new());
        assert_eq!(named("server/kinds.rs", bad, &KIND), Vec::<String>::new());
        assert_eq!(named("client/a.rs", bad, &KIND), Vec::<String>::new());
    }
}
