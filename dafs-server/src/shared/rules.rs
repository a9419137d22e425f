//! Who may do what: keys, and the rules of each export. Replaced while the server runs, as a whole.

use std::sync::{Arc, PoisonError, RwLock};

use crate::access::Access;
use crate::config::{Config, ExportConfig};

/// The rules that hold now.
pub(crate) struct Rules {
    pub(crate) access: Access,
    /// By the exports' places in storage; `None` for one that is withdrawn.
    exports: Vec<Option<ExportConfig>>,
}

/// What replacing the rules came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reloaded {
    /// Keys that clients may prove now.
    pub keys: usize,
    /// Exports that can be mounted now.
    pub exports: usize,
    /// What has changed and holds only after a restart, in words.
    pub needs_restart: Vec<String>,
}

/// The place of the rules. A lock is taken when a client connects or mounts, never for what it does then.
pub(super) struct CurrentRules(RwLock<Arc<Rules>>);

impl Rules {
    /// The rules of an export; `None` where it is withdrawn, or there is none.
    pub(crate) fn export(&self, index: usize) -> Option<&ExportConfig> {
        self.exports.get(index).and_then(Option::as_ref)
    }

    /// The exports that are not withdrawn.
    pub(crate) fn exports(&self) -> impl Iterator<Item = &ExportConfig> {
        self.exports.iter().flatten()
    }
}

impl CurrentRules {
    pub(super) fn new(settings: &Config) -> Self {
        let exports = settings.exports.iter().cloned().map(Some).collect();
        Self(RwLock::new(Arc::new(Rules { access: Access::new(settings.access.clone()), exports })))
    }

    pub(super) fn get(&self) -> Arc<Rules> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Replaces the rules. `began` is what the server was started with: its exports keep their places, files and ways to storage.
    pub(super) fn replace(&self, began: &Config, new: &Config) -> Reloaded {
        let mut needs_restart = Vec::new();
        let named = |name: &str| new.exports.iter().find(|export| export.name == name);
        let followed = |old: &ExportConfig| Some(follow(old, named(&old.name)?, &mut needs_restart));
        let exports: Vec<_> = began.exports.iter().map(followed).collect();
        let is_known = |name: &str| began.exports.iter().any(|export| export.name == name);
        let added = new.exports.iter().filter(|export| !is_known(&export.name));
        needs_restart.extend(added.map(|export| format!("export \"{}\", which is new", export.name)));
        if new.listeners != began.listeners {
            needs_restart.push("where to listen".to_owned());
        }
        needs_restart.extend(began.other_changes(new).into_iter().map(str::to_owned));
        let count = exports.iter().flatten().count();
        let keys = new.access.keys.len();
        let access = self.get().access.with_config(new.access.clone());
        let rules = Rules { access, exports };
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(rules);
        Reloaded { keys, exports: count, needs_restart }
    }
}

/// The rules of an export as far as they can be followed without a restart. Storage was opened for the old export, and whom a mount lets
/// in depends on what storage serves.
fn follow(old: &ExportConfig, new: &ExportConfig, needs_restart: &mut Vec<String>) -> ExportConfig {
    let served = |export: &ExportConfig| {
        (export.kind.clone(), export.direct_io, (export.local_locks, export.local_open), export.root)
    };
    if served(new) != served(old) {
        needs_restart.push(format!("export \"{}\": what it serves, and how", old.name));
    }
    if old.read_only && !new.read_only {
        needs_restart.push(format!("export \"{}\": the removal of `ro`", old.name));
    }
    let (kind, direct_io, (local_locks, local_open), root) = served(old);
    let read_only = old.read_only || new.read_only;
    ExportConfig { kind, direct_io, local_locks, local_open, root, read_only, ..new.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::IdentityMapping;
    use crate::config::{ExportKind, MemoryRoot};

    // [ACC-106]
    #[test]
    fn reloaded_export_keeps_its_target_and_takes_new_rules() {
        let with = |export| Config { exports: vec![export], ..Config::default() };
        let directory = || ExportConfig::new("d", ExportKind::Directory("/d".into()));
        let memory = || ExportConfig::new("d", ExportKind::Memory { size_max: 1 });
        let squash = IdentityMapping::Client;
        for (old, new, expected, named) in [
            (directory(), memory(), directory(), "what it serves"),
            (memory(), directory(), memory(), "what it serves"),
            (directory(), ExportConfig { direct_io: true, ..directory() }, directory(), "what it serves"),
            (directory(), ExportConfig { local_locks: true, ..directory() }, directory(), "what it serves"),
            (
                memory(),
                ExportConfig { root: MemoryRoot { uid: 1, ..memory().root }, ..memory() },
                memory(),
                "what it serves",
            ),
            (
                ExportConfig { read_only: true, ..directory() },
                directory(),
                ExportConfig { read_only: true, ..directory() },
                "`ro`",
            ),
        ] {
            let new = ExportConfig { squash, keys: vec!["k".to_owned()], ..new };
            let began = with(old);
            let current = CurrentRules::new(&began);
            let reloaded = current.replace(&began, &with(new));
            assert!(reloaded.needs_restart.iter().any(|text| text.contains(named)), "{reloaded:?}");
            let expected = ExportConfig { squash, keys: vec!["k".to_owned()], ..expected };
            assert_eq!(current.get().export(0), Some(&expected));
        }
        let began = with(directory());
        let current = CurrentRules::new(&began);
        let new = with(ExportConfig { read_only: true, ..directory() });
        assert_eq!(current.replace(&began, &new).needs_restart, Vec::<String>::new());
        assert!(current.get().export(0).is_some_and(|export| export.read_only), "new `ro` is followed");
    }
}
