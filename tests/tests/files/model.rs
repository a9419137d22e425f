//! Random operations on dafs and the same on a local directory: contents, sizes and names must agree throughout.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use dafs_client::{Config, Export, File, MethodOverride, OpenOptions};
use dafs_tests::harness::{Harness, On};
use dafs_tests::on_each_provider_and_three_workers;
use dafs_tests::suite::{EXPORTS, Numbers, assert_same, bytes};

on_each_provider_and_three_workers! {
    random_operations_agree_with_a_local_directory,
}

/// A guest's emulated device has no time for it.
mod direct {
    use super::random_operations_that_bypass_the_page_cache_agree_with_a_local_directory;

    dafs_tests::on_sockets! { random_operations_that_bypass_the_page_cache_agree_with_a_local_directory }
}

const NAMES: u64 = 8;
const STEPS: u64 = 1500;
/// Over an emulated device.
const STEPS_EMULATED: u64 = 500;
const SIZE_MAX: u64 = 400_000;
const BLOCK: u64 = 4096;

struct Pair {
    export: Export,
    files: Vec<Option<(File, fs::File)>>,
    local: PathBuf,
    numbers: Numbers,
}

impl Pair {
    fn file(&mut self, index: usize) -> &(File, fs::File) {
        if self.files[index].is_none() {
            let mut options = OpenOptions::new();
            let remote =
                self.export.open_with(index.to_string(), options.read(true).write(true).create(true));
            let local = fs::File::options()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .open(self.local.join(index.to_string()));
            self.files[index] = Some((remote.unwrap(), local.unwrap()));
        }
        self.files[index].as_ref().unwrap()
    }

    fn step(&mut self, step: u64) {
        let index = self.numbers.below(NAMES) as usize;
        let offset = self.numbers.below(SIZE_MAX);
        // Mostly small, sometimes large.
        let len = match self.numbers.below(4) {
            0 => self.numbers.below(200_000),
            1 => self.numbers.below(20_000),
            _ => self.numbers.below(300),
        };
        // Sometimes in whole blocks, which may bypass the page cache.
        let (offset, len) = match self.numbers.below(3) {
            0 => (offset / BLOCK * BLOCK, len.next_multiple_of(BLOCK)),
            _ => (offset, len),
        };
        let len = len as usize;
        match self.numbers.below(12) {
            0..4 => {
                let data = bytes(step, len);
                let (remote, local) = self.file(index);
                remote.write_all_at(&data, offset).unwrap();
                local.write_all_at(&data, offset).unwrap();
            }
            4..8 => {
                let (remote, local) = self.file(index);
                let (mut found, mut expected) = (vec![0; len], vec![0; len]);
                let count = remote.read_at(&mut found, offset).unwrap();
                let mut read = 0;
                while read < len {
                    match local.read_at(&mut expected[read..], offset + read as u64).unwrap() {
                        0 => break,
                        more => read += more,
                    }
                }
                assert_same(&found[..count], &expected[..read], &format!("step {step}: read"));
            }
            8 => {
                let (remote, local) = self.file(index);
                remote.truncate(offset).unwrap();
                local.set_len(offset).unwrap();
            }
            9 => {
                // In one message, whatever the method.
                let data = bytes(step, len.min(8000));
                let (remote, local) = self.file(index);
                let at = local.metadata().unwrap().len();
                assert_eq!(remote.append(&data).unwrap(), at, "step {step}");
                local.write_all_at(&data, at).unwrap();
            }
            10 => {
                let to = self.numbers.below(NAMES) as usize;
                let (from, target) = (index.to_string(), to.to_string());
                let remote = self.export.rename(&from, &self.export, &target, true);
                let local = fs::rename(self.local.join(&from), self.local.join(&target));
                assert_eq!(remote.is_ok(), local.is_ok(), "step {step}: {remote:?} {local:?}");
                if local.is_ok() && from != target {
                    self.files[to] = self.files[index].take();
                }
            }
            _ => {
                let remote = self.export.remove_file(index.to_string());
                let local = fs::remove_file(self.local.join(index.to_string()));
                assert_eq!(remote.is_ok(), local.is_ok(), "step {step}: {remote:?} {local:?}");
                self.files[index] = None;
            }
        }
    }

    fn compare(&self, what: &str) {
        let mut names: Vec<_> = self.export.read_dir("", true).unwrap().map(|entry| entry.unwrap()).collect();
        names.sort_by(|a, b| a.name.cmp(&b.name));
        let mut local: Vec<_> =
            fs::read_dir(&self.local).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        local.sort();
        assert_eq!(names.len(), local.len(), "{what}");
        for (entry, name) in names.iter().zip(&local) {
            assert_eq!(entry.name, name.as_encoded_bytes(), "{what}");
            let expected = fs::read(self.local.join(name)).unwrap();
            assert_eq!(entry.attributes.as_ref().unwrap().size, expected.len() as u64, "{what}");
            let mut found = vec![0; expected.len()];
            self.export.open(name).unwrap().read_exact_at(&mut found, 0).unwrap();
            assert_same(&found, &expected, what);
        }
    }
}

// [STOR-9] [CLI-1]
fn random_operations_agree_with_a_local_directory(on: On) {
    let harness = Harness::start(on);
    agree(on, &harness, 0, &EXPORTS);
}

// [STOR-12]
fn random_operations_that_bypass_the_page_cache_agree_with_a_local_directory(on: On) {
    let harness = Harness::start_with(on, |config| config.exports[0].direct_io = true);
    agree(on, &harness, 100, &EXPORTS[..1]);
}

fn agree(on: On, harness: &Harness, seeds: u64, exports: &[&str]) {
    for (number, method) in [
        (1, MethodOverride::Auto),
        (2, MethodOverride::Inline),
        (3, MethodOverride::Bounced),
        (4, MethodOverride::Eager),
        (5, MethodOverride::ClientInitiated),
    ] {
        if number > 3 && !matches!(on, On::Tcp | On::Shm) {
            // A guest's emulated device has no time for more.
            continue;
        }
        let seed = seeds + number;
        let session = harness.session_with(&Config { method, ..Config::default() });
        let steps = if on.is_verbs() { STEPS_EMULATED } else { STEPS };
        for export in exports {
            let local = harness.scratch().join(format!("local-{export}-{seed}"));
            fs::create_dir(&local).unwrap();
            let root = session.mount(export).unwrap();
            let mut pair = Pair {
                export: root,
                files: (0..NAMES).map(|_| None).collect(),
                local,
                numbers: Numbers::new(seed),
            };
            for step in 0..steps {
                pair.step(step);
                if step % 500 == 499 {
                    pair.compare(&format!("{export}, {method:?}, after step {step}"));
                }
            }
            pair.files.clear();
            for index in 0..NAMES {
                // Those that are there; the next round begins empty.
                let _ = pair.export.remove_file(index.to_string());
            }
            pair.compare_empty();
        }
    }
}

impl Pair {
    fn compare_empty(&self) {
        assert_eq!(self.export.read_dir("", false).unwrap().count(), 0);
    }
}
