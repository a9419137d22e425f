//! With the feature `verbs`: compiles what C says about the structures of libibverbs and librdmacm, for the test that compares
//! the bindings with it (`src/transport/verbs/tests/layout.rs`). Without it: nothing.

fn main() {
    println!("cargo::rerun-if-changed=src/transport/verbs/tests/layout.c");
    #[cfg(feature = "verbs")]
    cc::Build::new()
        .file("src/transport/verbs/tests/layout.c")
        .extra_warnings(false)
        .compile("dafs_verbs_layout");
}
