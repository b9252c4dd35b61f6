#!/usr/bin/env bash
# What the tests use besides Rust: PyIceberg and SeaweedFS as independent peers (in .venv), and the public data sets of
# vega-datasets (in target/test-data). Does nothing when they are there.
set -euo pipefail
cd "$(dirname "$0")/.."

requirements=scripts/test-requirements.txt
stamp=.venv/$(sha256sum "$requirements" | cut -c 1-16)
if [ ! -e "$stamp" ]; then
  python3 -m venv .venv
  .venv/bin/pip install --quiet --disable-pip-version-check -r "$requirements"
  touch "$stamp"
fi

datasets=vega-datasets@3.2.1
data=target/test-data/$datasets
if [ ! -e "$data/package.json" ]; then
  tmp=$(mktemp -d)
  trap 'rm -rf "$tmp"' EXIT
  (cd "$tmp" && npm pack --silent "$datasets" >/dev/null && tar xzf ./*.tgz)
  mkdir -p "$(dirname "$data")"
  rm -rf "$data"
  mv "$tmp/package" "$data"
fi
echo "test set-up: ready"
