//! Which files of a crate import which, and whose methods they call: circles, and arrows that point up.

use std::collections::{BTreeMap, BTreeSet};

use crate::calls::Calls;
use crate::source::{code_only, paths, without_tests};

/// As many files may import each other: a type, what makes it and what it makes.
const CIRCLE_MAX: usize = 3;

/// Which files of one crate import which.
pub(crate) struct Graph {
    /// Paths below the crate's `src`.
    names: Vec<String>,
    imports: Vec<BTreeSet<usize>>,
    calls: Vec<Calls>,
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
        let calls = files.values().map(|text| Calls::of(&without_tests(&code_only(text))));
        Self { imports: imports.collect(), calls: calls.collect(), names: files.keys().cloned().collect() }
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
        let floor_of = |file: usize| self.floor_of(file, floors);
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

impl Graph {
    /// The floor of a file, counted from the highest.
    fn floor_of(&self, file: usize, floors: &[&[&str]]) -> Option<usize> {
        let name = self.names[file].trim_end_matches(".rs");
        let mut around = std::iter::successors(Some(name), |inner| Some(inner.rsplit_once('/')?.0));
        around.find_map(|room| floors.iter().position(|rooms| rooms.contains(&room)))
    }

    /// Methods that are called from below the file that adds them to a type. The type is one that the caller may have in its hands, because
    /// it lives on the caller's floor or below. Types are not known to text: a name counts where no file on the caller's floor or below
    /// has a method of that name.
    pub(crate) fn calls_upward(&self, floors: &[&[&str]]) -> Vec<String> {
        let floor: Vec<Option<usize>> =
            (0..self.names.len()).map(|file| self.floor_of(file, floors)).collect();
        // Where the type lives that a file adds methods to: there, or, of those that have its name, in the lowest.
        let home = |file: usize, of: &str| {
            let homes = self.calls.iter().zip(&floor).filter(|(calls, _)| calls.types.contains(of));
            let lowest = homes.filter_map(|(_, floor)| *floor).max();
            if self.calls[file].types.contains(of) { floor[file] } else { lowest }
        };
        let mut by_name: BTreeMap<&str, Vec<(usize, &str)>> = BTreeMap::new();
        for (file, calls) in self.calls.iter().enumerate() {
            for (of, name) in &calls.methods {
                by_name.entry(name).or_default().push((file, of));
            }
        }
        let mut faults = Vec::new();
        for (caller, calls) in self.calls.iter().enumerate() {
            let Some(here) = floor[caller] else { continue };
            for name in &calls.called {
                let Some(added) = by_name.get(name.as_str()) else { continue };
                let is_above = |file: usize| floor[file].is_some_and(|floor| floor < here);
                let at_hand = |file: usize, of: &str| home(file, of).is_some_and(|home| home >= here);
                if added.iter().all(|(file, of)| is_above(*file) && at_hand(*file, of)) {
                    let (file, of) = added[0];
                    let (caller, file) = (&self.names[caller], &self.names[file]);
                    faults.push(format!("{caller} calls {of}::{name}, which {file} adds above it"));
                }
            }
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
    fn call_of_a_method_that_is_added_above_is_found() {
        const FLOORS: &[&[&str]] = &[&["top"], &["middle"], &["base"]];
        let good = [
            (
                "top.rs",
                "impl Shared {\n    pub(crate) fn serve(&mut self) {\n        self.move_it();\n    }\n}\n",
            ),
            ("middle.rs", "impl Shared {\n    fn move_it(&mut self) {\n        self.count();\n    }\n}\n"),
            ("base.rs", "struct Shared {\n}\nimpl Shared {\n    fn count(&self) {\n    }\n}\n"),
        ];
        assert_eq!(graph(&good).calls_upward(FLOORS), Vec::<String>::new());
        for call in ["self.serve();", "worker\n.serve();", "Self::serve(self);", "at.worker.serve();"] {
            let text = format!("impl Shared {{\n    fn move_it(&mut self) {{\n{call}\n    }}\n}}\n");
            let mut bad = good;
            bad[1].1 = &text;
            assert_eq!(
                graph(&bad).calls_upward(FLOORS),
                ["middle.rs calls Shared::serve, which top.rs adds above it"],
                "{call}"
            );
        }
        // A type of above is not in the hands of below, and another's method may have the name.
        let mut other = good;
        other[1].1 = "fn f(x: Other) { x.serve() }\nimpl Other {\n    fn serve(&self) {\n    }\n}\n";
        assert_eq!(graph(&other).calls_upward(FLOORS), Vec::<String>::new());
        let mut own = good;
        own[0].1 = "struct Top {\n}\nimpl Top {\n    fn collect(&self) {\n    }\n}\n";
        own[1].1 = "fn f() { list.collect() }\n";
        assert_eq!(graph(&own).calls_upward(FLOORS), Vec::<String>::new());
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
