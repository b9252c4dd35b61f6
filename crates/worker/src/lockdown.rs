//! What DuckDB itself is told never to do: reach past the warehouse's place, and change its settings.
//!
//! Given a connection with the warehouse attached, makes DuckDB refuse by its own rules, and sees that it does. Not a boundary: the
//! doors and the sandbox decide what a worker can reach, and hold without this (docs/layers.md).

use duck_contract::worker::{Cell, Failure, Spec};

use crate::fault;
use crate::session::{place, quoted};
use crate::sys::duckdb::Connection;

/// In this order; after the last nothing can be set.
pub(crate) fn settings(spec: &Spec) -> Vec<String> {
    vec![
        format!("SET GLOBAL allowed_directories = [{}]", quoted(&place(spec))),
        "SET GLOBAL enable_external_access = false".to_owned(),
        // Last: nothing can be set after it.
        "SET GLOBAL lock_configuration = true".to_owned(),
    ]
}

/// What DuckDB must not do, now that it is locked down, or this worker never serves.
pub(crate) fn test(connection: &Connection, cell: &Cell, spec: &Spec) -> Result<(), Failure> {
    let foreign = beside(spec);
    let port = format!("http://127.0.0.1:{}/probe.txt", cell.forbidden_port);
    for (what, target) in [
        ("a local file", "/etc/passwd"),
        ("a foreign port", port.as_str()),
        ("a foreign prefix", foreign.as_str()),
    ] {
        match connection.run(&format!("FROM read_blob({})", quoted(target))) {
            Err(e) if fault::is_permission(&e) => {}
            other => return Err(fault::self_test(&format!("{what} through DuckDB: {other:?}"))),
        }
    }
    // Another setting than those above, which refuse to be loosened by themselves.
    match connection.run("SET GLOBAL http_retries = 9") {
        Err(_) => Ok(()),
        Ok(()) => Err(fault::self_test("a setting could be changed")),
    }
}

/// A place that begins like the warehouse's, and is not in it.
fn beside(spec: &Spec) -> String {
    format!("{}-other/probe.txt", place(spec).trim_end_matches('/'))
}

#[cfg(test)]
mod tests {
    use duck_contract::Role;

    use super::*;

    #[test]
    fn the_place_beside_is_outside_with_a_prefix_and_with_a_bucket_of_its_own() {
        for prefix in ["", "w_a/", "x/w_a/"] {
            let spec = Spec { role: Role::Reader, bucket: "lakehouse".to_owned(), prefix: prefix.to_owned() };
            assert!(!beside(&spec).starts_with(&place(&spec)), "{}", beside(&spec));
        }
    }
}
