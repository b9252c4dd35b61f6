#!/usr/bin/env bash
# Fetches libduckdb and the extensions avro, httpfs, iceberg at a pinned version into third_party/duckdb and checks
# their sha256 sums. Does nothing when they are there. Package registries first (npm, PyPI), then DuckDB's own hosts.
set -euo pipefail
cd "$(dirname "$0")/.."

version=1.5.5
npm_version=1.5.5-r.5
platform=linux_amd64
dest=third_party/duckdb
sums=$PWD/scripts/duckdb-$version-$platform.sha256
extensions=$dest/extensions/v$version/$platform

if [ "$(uname -s)-$(uname -m)" != Linux-x86_64 ]; then
  echo "fetch-duckdb: only Linux on x86_64 is pinned so far (this is $(uname -s) on $(uname -m))" >&2
  exit 1
fi
verified() { (cd "$dest" 2>/dev/null && sha256sum --check --quiet --status "$sums" 2>/dev/null); }
if verified; then
  echo "duckdb $version: up to date"
  exit 0
fi

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
unpack() { python3 -m zipfile -e "$1" "$2"; }

library_from_npm() {
  (cd "$tmp" && npm pack --silent "@duckdb/node-bindings-linux-x64@$npm_version" >/dev/null &&
    tar xzf ./*.tgz package/libduckdb.so && mv package/libduckdb.so .)
}
library_from_upstream() {
  curl -fsSL -o "$tmp/lib.zip" "https://github.com/duckdb/duckdb/releases/download/v$version/libduckdb-linux-amd64.zip" &&
    unpack "$tmp/lib.zip" "$tmp"
}
extension_from_pypi() {
  python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
    --platform manylinux2014_x86_64 --python-version 3.11 -d "$tmp" "duckdb-extension-$1==$version" &&
    unpack "$tmp/duckdb_extension_$1-$version"-*.whl "$tmp/wheel" &&
    mv "$(find "$tmp/wheel" -name "$1.duckdb_extension" | head -n 1)" "$tmp/"
}
extension_from_upstream() {
  curl -fsSL "https://extensions.duckdb.org/v$version/$platform/$1.duckdb_extension.gz" | gunzip >"$tmp/$1.duckdb_extension"
}
unreachable() {
  echo "fetch-duckdb: $1 could be had neither from $2 nor from DuckDB's own host." >&2
  echo "Check the network, or put the files of $sums below $dest by hand." >&2
  exit 1
}

mkdir -p "$dest/lib" "$extensions"
library_from_npm || library_from_upstream || unreachable libduckdb.so npm
install -m 644 "$tmp/libduckdb.so" "$dest/lib/"
for name in avro httpfs iceberg; do
  extension_from_pypi $name || extension_from_upstream $name || unreachable $name.duckdb_extension PyPI
  install -m 644 "$tmp/$name.duckdb_extension" "$extensions/"
done
if ! verified; then
  echo "fetch-duckdb: a file does not have the sum that $sums gives:" >&2
  (cd "$dest" && sha256sum --check --quiet "$sums") >&2 || true
  exit 1
fi
echo "duckdb $version: fetched and verified"
