#!/usr/bin/env bash
# Builds everything in release and measures: scripts/bench.sh [cold|memory|churn|fair|stop|small|stream|writes|all]. See docs/performance.md.
set -euo pipefail
cd "$(dirname "$0")/.."
# One command, so that all of it is built with the same features.
cargo build --release --workspace --bins --example in_process --bench performance
exec cargo bench --workspace --bench performance -- "$@"
