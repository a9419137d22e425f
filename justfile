# One command per habit; continuous integration runs the same ones. `just` alone lists them.

_default:
    @just --list

# everything that must pass before a change lands
test *ARGS:
    cargo xtask test {{ARGS}}

# one suite on every provider, without the lints: just suite session
suite NAME *ARGS:
    cargo xtask test --no-lint --suite {{NAME}} {{ARGS}}

# format and lint
lint:
    cargo fmt --all
    cargo clippy --locked --workspace --all-targets -- -D warnings

# the documentation, in a browser
doc:
    cargo doc --locked --workspace --no-deps --open

# licences and advisories of the dependencies (cargo install cargo-deny)
deny:
    cargo deny check

# a server on a new empty directory and on memory
serve DIR=`mktemp -d`:
    cargo run --release --bin dafs-server -- --export data={{DIR}} --export scratch=mem: \
        --listen tcp://127.0.0.1:0 --listen shm:///tmp/dafs.sock

# one fuzz target (needs nightly and cargo install cargo-fuzz): just fuzz bodies
fuzz TARGET *ARGS:
    cargo +nightly fuzz run --fuzz-dir tests/fuzz --features fuzzer {{TARGET}} {{ARGS}}
