//! How the shared library is linked.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // MPI libraries unload what they loaded; the threads of sessions, and what runs at exit, must still be there then.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libadio_dafs.so");
}
