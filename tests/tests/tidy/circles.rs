//! Files of a crate that import each other, by whatever way.

use std::collections::{BTreeMap, BTreeSet};

use crate::source::{code_only, paths, without_tests};

/// As many files may import each other: a type, what makes it and what it makes.
const CIRCLE_MAX: usize = 3;

/// Circles of more than [`CIRCLE_MAX`] files; `files` are those of one crate's `src`, by their path below it, without those of tests.
pub(crate) fn circles(files: &BTreeMap<String, String>) -> Vec<String> {
    let modules: BTreeMap<Vec<&str>, usize> =
        files.keys().enumerate().map(|(index, path)| (module_of(path), index)).collect();
    let imports: Vec<BTreeSet<usize>> = files
        .iter()
        .map(|(path, text)| {
            let module = module_of(path);
            let code = without_tests(&code_only(text));
            let named = paths(&code).into_iter().filter_map(|(_, named)| target(&modules, &module, &named));
            named.collect()
        })
        .collect();
    let reached: Vec<BTreeSet<usize>> = (0..files.len()).map(|from| reach(&imports, from)).collect();
    let mut found = BTreeSet::new();
    for from in 0..files.len() {
        let circle: Vec<usize> =
            reached[from].iter().copied().filter(|other| reached[*other].contains(&from)).collect();
        if circle.len() > CIRCLE_MAX {
            found.insert(circle);
        }
    }
    let names: Vec<&String> = files.keys().collect();
    let shown =
        |circle: &Vec<usize>| circle.iter().map(|file| names[*file].as_str()).collect::<Vec<_>>().join(" ");
    found
        .iter()
        .map(|circle| format!("{} files import each other: {}", circle.len(), shown(circle)))
        .collect()
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

    fn of(files: &[(&str, &str)]) -> Vec<String> {
        circles(&files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect())
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
