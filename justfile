# The few commands of a day's work. `just` alone lists them.
_:
    @just --list --unsorted

# A development server with two organisations; arguments go to `duck-server dev`
dev *arguments:
    ./scripts/dev {{ arguments }}

# All tests; arguments go to `cargo test`
test *arguments:
    ./scripts/test {{ arguments }}

# Format and lints, before a commit
check:
    cargo fmt --check
    cargo clippy --workspace --all-targets --locked -- -D warnings

# What the continuous integration runs
ci:
    ./.ci/run

# A file of attacks against a running server (docs/corpus.md): --corpus FILE --report FILE …
corpus *arguments:
    ./scripts/corpus {{ arguments }}

# The same with more and more layers off, and what each catches first (docs/layers.md): some 15 minutes
layers corpus world="s3":
    ./scripts/layers {{ corpus }} {{ world }}

# The checks of both doors against random input, many cases of it: PROPTEST_CASES, 200 000 unless told otherwise
fuzz cases="200000":
    PROPTEST_CASES={{ cases }} PROPTEST_MAX_SHRINK_ITERS=10000 cargo test --package duck-server --locked --lib fuzz_

# The measurements of docs/performance.md
bench *arguments:
    ./scripts/bench.sh {{ arguments }}

# Rewrite crates/contract/schema.json from the types
schema:
    UPDATE_SCHEMA=1 cargo test --package duck-contract --locked --test it schema

# Licences, sources, advisories, one arrow
deny:
    cargo deny --locked check
