//! Which files of a crate import which: circles, and arrows that point up.

use std::collections::{BTreeMap, BTreeSet};

use crate::source::{code_only, paths, without_tests};

/// As many files may import each other: a type, what makes it and what it makes.
const CIRCLE_MAX: usize = 3;

/// Which files of one crate import which.
pub(crate) struct Graph {
    /// Paths below the crate's `src`.
    names: Vec<String>,
    imports: Vec<BTreeSet<usize>>,
}

impl Graph {
    /// Of the files of a crate's `src`, by their path below it, without those of tests.
    pub(crate) fn new(files: &BTreeMap<String, String>) -> Self {
        let modules: BTreeMap<Vec<&str>, usize> =
            files.keys().enumerate().map(|(index, path)| (module_of(path), index)).collect();
        let imports = files.iter().map(|(path, text)| {
            let module = module_of(path);
            let code = without_tests(&code_only(text));
            let named = paths(&code).into_iter().filter_map(|(_, named)| target(&modules, &module, &named));
            named.collect()
        });
        Self { imports: imports.collect(), names: files.keys().cloned().collect() }
    }

    /// Circles of more than [`CIRCLE_MAX`] files.
    pub(crate) fn circles(&self) -> Vec<String> {
        let reached: Vec<BTreeSet<usize>> =
            (0..self.names.len()).map(|from| reach(&self.imports, from)).collect();
        let circle_of = |from: usize| -> Vec<usize> {
            reached[from].iter().copied().filter(|other| reached[*other].contains(&from)).collect()
        };
        let found: BTreeSet<Vec<usize>> =
            (0..self.names.len()).map(circle_of).filter(|circle| circle.len() > CIRCLE_MAX).collect();
        let shown = |circle: &Vec<usize>| {
            let names: Vec<&str> = circle.iter().map(|file| self.names[*file].as_str()).collect();
            format!("{} files import each other: {}", circle.len(), names.join(" "))
        };
        found.iter().map(shown).collect()
    }

    /// Imports of a room above the file's own, and files of rooms that are on no floor. `floors` are those of the crate, the highest first;
    /// a room is a folder, or a file, below `src`; the innermost that is named counts. The crate's root may import all.
    pub(crate) fn upward(&self, floors: &[&[&str]]) -> Vec<String> {
        let floor_of = |file: usize| {
            let name = self.names[file].trim_end_matches(".rs");
            let mut around = std::iter::successors(Some(name), |inner| Some(inner.rsplit_once('/')?.0));
            around.find_map(|room| floors.iter().position(|rooms| rooms.contains(&room)))
        };
        let mut faults = Vec::new();
        for (file, name) in self.names.iter().enumerate() {
            if matches!(name.as_str(), "lib.rs" | "main.rs") {
                continue;
            }
            let Some(floor) = floor_of(file) else {
                faults.push(format!("{name} is on no floor: name its room in tests/tests/tidy/layers.rs"));
                continue;
            };
            let above = self.imports[file]
                .iter()
                .filter(|other| floor_of(**other).is_some_and(|other| other < floor));
            faults.extend(
                above.map(|other| format!("{name} imports {}, which is above it", self.names[*other])),
            );
        }
        faults
    }
}

/// The parts of a module's path, from the path of its file.
fn module_of(path: &str) -> Vec<&str> {
    let mut parts: Vec<&str> = path.trim_end_matches(".rs").split('/').collect();
    if matches!(parts.last(), Some(&("mod" | "lib" | "main"))) {
        parts.pop();
    }
    parts
}

/// The file that a path names something of; none for those of other crates, and for the file's own.
fn target(modules: &BTreeMap<Vec<&str>, usize>, module: &[&str], named: &str) -> Option<usize> {
    let mut parts: Vec<&str> = named.split("::").collect();
    let mut base: Vec<&str> = match parts[0] {
        "crate" => Vec::new(),
        "self" | "super" => module.to_vec(),
        _ => return None,
    };
    while matches!(parts.first(), Some(&("crate" | "self" | "super"))) {
        if parts.remove(0) == "super" {
            base.pop();
        }
    }
    base.extend(parts);
    while !base.is_empty() {
        if let Some(file) = modules.get(&base) {
            return (base != module).then_some(*file);
        }
        base.pop();
    }
    None
}

fn reach(imports: &[BTreeSet<usize>], from: usize) -> BTreeSet<usize> {
    let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
    while let Some(file) = next.pop() {
        for other in &imports[file] {
            if seen.insert(*other) {
                next.push(*other);
            }
        }
    }
    seen
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(files: &[(&str, &str)]) -> Graph {
        Graph::new(&files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect())
    }

    fn of(files: &[(&str, &str)]) -> Vec<String> {
        graph(files).circles()
    }

    #[test]
    fn import_of_a_room_above_is_found_however_it_is_written() {
        const FLOORS: &[&[&str]] = &[&["top"], &["left", "right"], &["base"]];
        let good = [
            ("lib.rs", "use crate::base::B;"),
            ("top/mod.rs", "use crate::left::L; use crate::base::B;"),
            ("left.rs", "use crate::right::R; #[cfg(test)]\nmod tests { use crate::top::T; }"),
            ("right.rs", "use crate::base::B;"),
            ("base/mod.rs", "use self::part::P;"),
            ("base/part.rs", "use super::Q;"),
        ];
        assert_eq!(graph(&good).upward(FLOORS), Vec::<String>::new());
        for import in ["use crate::left::L;", "use super::super::left::L;", "fn f() { crate::left::f() }"] {
            let mut bad = good;
            bad[5].1 = import;
            assert_eq!(
                graph(&bad).upward(FLOORS),
                ["base/part.rs imports left.rs, which is above it"],
                "{import}"
            );
        }
        let mut new = good;
        new[3].0 = "elsewhere.rs";
        assert_eq!(graph(&new).upward(FLOORS).len(), 1, "it is on no floor");
    }

    #[test]
    fn circle_of_four_files_is_found_and_of_three_is_not() {
        let three = [
            ("a/mod.rs", "use self::b::B;"),
            ("a/b.rs", "use crate::c::C;"),
            ("c.rs", "fn f() { crate::a::g() }"),
            ("d.rs", "use super::a::B; use std::a;"),
        ];
        assert_eq!(of(&three), Vec::<String>::new());
        let mut four = three;
        four[0].1 = "use self::b::B; use crate::{d::D, x};";
        assert_eq!(of(&four), ["4 files import each other: a/b.rs a/mod.rs c.rs d.rs"]);
        four[2].1 = "#[cfg(test)]\nmod tests { use crate::a; }";
        assert_eq!(of(&four), Vec::<String>::new(), "tests may");
    }
}
