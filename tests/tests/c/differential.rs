//! One random mixture of operations through the Rust API, through C, and on a local directory: the same answers, and the same tree.

use dafs_client::{Config, Sieve};
use dafs_tests::differential::local::{Local, tree_of};
use dafs_tests::differential::operation::{Answer, Driver, Generator, Op};
use dafs_tests::harness::On;
use dafs_tests::program::Program;

use crate::api::Api;
use crate::{compile, own, run};

/// As many as take some seconds on either provider.
const OPERATIONS: usize = 20_000;

pub(crate) fn rust_c_and_kernel_do_the_same(on: On) {
    let server = Program::start(on, &[]);
    let directory = tempfile::tempdir().unwrap();
    let seed = 20_261_128;
    let mut generator = Generator::new(seed);
    let operations: Vec<Op> = (0..OPERATIONS).map(|_| generator.next()).collect();
    for root in ["api", "c", "local"] {
        std::fs::create_dir(server.data().join(root)).unwrap();
    }

    let lines: String = operations.iter().map(|operation| operation.line() + "\n").collect();
    let file = directory.path().join("operations");
    std::fs::write(&file, lines).unwrap();
    let program = directory.path().join("differential");
    compile("cc", &own("differential.c"), &["-std=gnu11", "-O2"], &program);
    let url = server.url().to_owned();
    let ran = run(&program, &[&url, "data", "c", file.to_str().unwrap()]);
    let by_c: Vec<Answer> = String::from_utf8(ran.stdout).unwrap().lines().map(Answer::of).collect();
    assert_eq!(by_c.len(), operations.len());

    // What is written between the parts of a list would be data where a hole was.
    let session = server.session_with(&Config { sieve: Sieve::Off, ..Config::default() });
    let mut api = Api::new(&session.mount("data").unwrap(), "api");
    let mut local = Local::new(&server.data().join("local"));
    let mut succeeded = 0;
    for (place, operation) in operations.iter().enumerate() {
        let (mut by_api, mut by_kernel) = (api.apply(operation), local.apply(operation));
        let what = format!("seed {seed}, operation {place}: {}", operation.line());
        let mut by_c = by_c[place].clone();
        if matches!(operation, Op::Seek { whence, .. } if *whence != libc::SEEK_END) {
            // Where a file in memory has holes is for the kernel to say: it may keep zeros, or give pages back.
            for answer in [&mut by_c, &mut by_api, &mut by_kernel] {
                answer.value = 0;
                answer.errno = if answer.errno == libc::ENXIO { 0 } else { answer.errno };
            }
        }
        assert_eq!(by_c, by_api, "{what}: C beside the Rust API");
        // Where both of two are wrong, either may be told of.
        let names_two = matches!(operation, Op::Link { .. } | Op::Rename { .. } | Op::Copy { .. });
        let both_fail = by_api.errno != 0 && by_kernel.errno != 0;
        if !(names_two && both_fail) {
            assert_eq!(by_api, by_kernel, "{what}: the Rust API beside the kernel");
        }
        succeeded += usize::from(by_kernel.errno == 0);
    }
    // It is about what operations do.
    assert!(succeeded > OPERATIONS / 3, "{succeeded} of {OPERATIONS} succeeded");
    let tree = |root: &str| tree_of(&server.data().join(root));
    let expected = tree("local");
    assert!(!expected.is_empty());
    assert_eq!(tree("api"), expected);
    assert_eq!(tree("c"), expected);
}
