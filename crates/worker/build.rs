//! Finds libduckdb.so, says how to get it when it is missing, and writes the run path: the installed layout first
//! (`bin/` beside `lib/`), then the checkout.
use std::path::Path;

// A build script has no configuration but its environment.
#[allow(clippy::disallowed_methods)]
fn main() {
    println!("cargo:rerun-if-env-changed=DUCKDB_LIB_DIR");
    let Some(dir) = std::env::var_os("DUCKDB_LIB_DIR") else {
        println!("cargo:warning=DUCKDB_LIB_DIR is not set; .cargo/config.toml sets it in a checkout");
        std::process::exit(1);
    };
    let dir = Path::new(&dir);
    let library = dir.join("libduckdb.so");
    if !library.exists() {
        println!("cargo:warning={} is missing: run scripts/fetch-duckdb.sh", library.display());
        std::process::exit(1);
    }
    println!("cargo:rerun-if-changed={}", library.display());
    println!("cargo:rustc-link-arg=-Wl,-rpath,$ORIGIN");
    println!("cargo:rustc-link-arg=-Wl,-rpath,$ORIGIN/../lib");
    println!("cargo:rustc-link-arg=-Wl,-rpath,{}", dir.display());
}
