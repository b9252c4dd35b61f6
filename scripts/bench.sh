#!/usr/bin/env bash
# Builds everything in release and measures: scripts/bench.sh [cold|memory|small|stream|all]. See docs/performance.md.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo build --release --workspace --bins
cargo build --release -p duck-worker --example in_process
exec cargo bench -p duck-server --bench performance -- "$@"
