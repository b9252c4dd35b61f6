//! The rules on which the shape of the tree depends. They read text, not syntax: good enough to notice, cheap enough to keep.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// The order in which modules of `crates/server/src` may know each other: each names only those before it. The doors come
/// first because they know no stage; then the journey's stages; then what conducts them; last what uses a whole server.
const ORDER: [&str; 18] = [
    "doors",
    "auth",
    "governance",
    "limits",
    "pool",
    "places",
    "audit",
    "query",
    "results",
    "statements",
    "journey",
    "api",
    "terminal",
    "maintain",
    "config",
    "server",
    "dev",
    "loadtest",
];

/// A name from outside, what it is, and the paths that may use it.
const OWNERS: [(&str, &str, &[&str]); 8] = [
    (concat!("libduckdb", "_sys"), "DuckDB", &["crates/worker/"]),
    (concat!("duck", "db"), "DuckDB", &["crates/worker/"]),
    (
        "axum",
        "the web framework",
        &[
            "crates/server/src/api/",
            "crates/server/src/dev/",
            "crates/server/src/server.rs",
            "crates/catalog/",
        ],
    ),
    ("jsonwebtoken", "tokens", &["crates/server/src/auth/", "crates/server/tests/"]),
    ("s3s", "the S3 protocol", &["crates/server/src/doors/storage/", "crates/server/benches/"]),
    (
        "object_store",
        "the real store",
        &[
            "crates/server/src/doors/storage/",
            "crates/server/src/dev/",
            "crates/server/benches/",
            "crates/catalog/",
        ],
    ),
    ("iceberg", "Iceberg's types", &["crates/catalog/"]),
    ("apache_avro", "Avro", &["crates/server/src/maintain/"]),
];

const LINES_MAX: usize = 500;
/// Longer files, each with its reason.
const LONG: [(&str, &str); 0] = [];

/// Not ours, or not committed.
const SKIPPED: [&str; 6] = [".git", ".dev", ".venv", "node_modules", "target", "third_party"];

struct Source {
    /// Relative to the root, with slashes.
    path: String,
    text: String,
}

impl Source {
    fn is_rust(&self) -> bool {
        self.path.rsplit_once('.').is_some_and(|(_, ending)| ending == "rs")
    }

    /// Lines with their numbers, without those that are comments.
    fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        (1..).zip(self.text.lines()).filter(|(_, line)| !line.trim_start().starts_with("//"))
    }
}

/// Every text file of the tree.
fn tree() -> Vec<Source> {
    let mut found = Vec::new();
    walk(Path::new(ROOT), "", &mut |path, folder| {
        if !folder && let Ok(text) = fs::read_to_string(Path::new(ROOT).join(path)) {
            found.push(Source { path: path.to_owned(), text });
        }
    });
    assert!(found.iter().any(|f| f.path == "Cargo.lock"), "this is not the tree: {ROOT}");
    found
}

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// Calls `each` with every file and folder. Symbolic links are not followed: they lead to what is not committed.
fn walk(folder: &Path, path: &str, each: &mut impl FnMut(&str, bool)) {
    let mut entries: Vec<_> = fs::read_dir(folder).unwrap().map_while(Result::ok).collect();
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let name = entry.file_name().to_string_lossy().into_owned();
        let kind = entry.file_type().unwrap();
        let below = if path.is_empty() { name.clone() } else { format!("{path}/{name}") };
        if SKIPPED.contains(&name.as_str()) {
            continue;
        }
        if kind.is_dir() {
            each(&below, true);
            walk(&entry.path(), &below, each);
        } else if kind.is_file() {
            each(&below, false);
        }
    }
}

/// Fails with everything that was found, one a line.
fn none(rule: &str, found: &[String]) {
    assert!(found.is_empty(), "{rule}\n  {}\n", found.join("\n  "));
}

/// The first names of all `crate::…` in a line, also those in braces.
fn of_this_crate(line: &str) -> Vec<&str> {
    let first = |text: &'_ str| text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
    let mut names = Vec::new();
    for (at, word) in line.match_indices("crate::") {
        let rest = &line[at + word.len()..];
        // One name, or the names of a group.
        for part in rest.strip_prefix('{').unwrap_or(rest).split([',', '}']).map(str::trim) {
            names.push(&part[..first(part)]);
            if !rest.starts_with('{') {
                break;
            }
        }
    }
    names
}

/// Whether a line of Rust uses the crate of this name: `name::` or `use name;`, not as a part of another path or word.
fn uses(line: &str, name: &str) -> bool {
    let before = |at: usize| {
        line[..at].chars().next_back().is_none_or(|c| !c.is_alphanumeric() && !"_:\"".contains(c))
    };
    line.match_indices(name).any(|(at, _)| {
        let rest = &line[at + name.len()..];
        before(at)
            && (rest.starts_with("::")
                || (rest.starts_with([';', ' ']) && line.trim_start().starts_with("use ")))
    })
}

#[test]
fn the_rules_read_what_they_should() {
    assert_eq!(of_this_crate("use crate::{auth::Caller, limits};"), ["auth", "limits", ""]);
    assert_eq!(of_this_crate("pub(crate) fn f(w: &crate::pool::Worker)"), ["pool"]);
    assert!(
        uses("use thing::Part;", "thing")
            && uses("fn f() -> thing::Part", "thing")
            && uses("use thing;", "thing")
    );
    assert!(
        !uses("use crate::sys::thing::X;", "thing")
            && !uses("my_thing::X", "thing")
            && !uses("\"thing::x\"", "thing")
    );
}

#[test]
fn stages_look_back_along_the_journey_and_never_forward() {
    let mut found = Vec::new();
    for file in tree() {
        let Some(within) = file.path.strip_prefix("crates/server/src/") else { continue };
        let module = within.split(['/', '.']).next().unwrap_or_default();
        let Some(own) = ORDER.iter().position(|m| *m == module) else {
            let known = ["lib", "main", "fault", "secret"].contains(&module);
            if !known {
                found.push(format!("{}: `{module}` has no place in ORDER (tidy.rs)", file.path));
            }
            continue;
        };
        for (number, line) in file.code() {
            for name in of_this_crate(line) {
                if ORDER.iter().position(|m| *m == name).is_some_and(|place| place > own) {
                    found.push(format!(
                        "{}:{number}: `{module}` names `{name}`, which comes after it",
                        file.path
                    ));
                }
            }
        }
    }
    none("A module names only those before it: hand the value in, or move what both need back.", &found);
}

#[test]
fn each_outside_thing_is_known_in_one_place() {
    let mut found = Vec::new();
    for file in tree().iter().filter(|f| f.is_rust()) {
        for (number, line) in file.code() {
            for (name, what, owners) in OWNERS {
                if uses(line, name) && !owners.iter().any(|owner| file.path.starts_with(owner)) {
                    found.push(format!(
                        "{}:{number}: {what} (`{name}`) belongs to {}",
                        file.path,
                        owners.join(", ")
                    ));
                }
            }
        }
    }
    let worker_only = concat!("libduckdb", "-sys");
    for file in tree().iter().filter(|f| f.path.starts_with("crates/") && f.path.ends_with("/Cargo.toml")) {
        if file.text.contains(worker_only) && file.path != "crates/worker/Cargo.toml" {
            found.push(format!("{}: only crates/worker links DuckDB", file.path));
        }
    }
    none("One folder knows each outside thing, so that replacing it is editing one folder.", &found);
}

#[test]
fn only_the_worker_s_sys_is_unsafe() {
    let word = concat!("un", "safe");
    let mut found = Vec::new();
    // The second is what tests let an attacker do.
    let places = ["crates/worker/src/sys/", "crates/worker/examples/taken_over/means.rs"];
    for file in tree().iter().filter(|f| f.is_rust() && !places.iter().any(|place| f.path.starts_with(place)))
    {
        for (number, line) in file.code() {
            if line
                .split(|c: char| !c.is_alphanumeric() && c != '_')
                .any(|w| w == word || w == concat!("un", "safe_code"))
            {
                found.push(format!("{}:{number}: {}", file.path, line.trim()));
            }
        }
    }
    none("Code that the compiler cannot check lies below crates/worker/src/sys.", &found);
}

#[test]
fn the_map_names_every_crate_and_folder_and_nothing_else() {
    let map = fs::read_to_string(Path::new(ROOT).join("ARCHITECTURE.md")).unwrap();
    let mut found = Vec::new();
    walk(Path::new(ROOT), "", &mut |path, folder| {
        let parts: Vec<&str> = path.split('/').collect();
        let mapped = match parts.as_slice() {
            ["crates", _] => true,
            ["crates", _, "src", rest @ ..] => !rest.is_empty() && !rest.contains(&"tests"),
            _ => false,
        };
        if folder && mapped && !map.contains(&format!("`{path}`")) {
            found.push(format!("`{path}` has no line"));
        }
    });
    for path in quoted(&map).filter(|text| text.starts_with("crates/") || text.starts_with("docs/")) {
        if !Path::new(ROOT).join(path).exists() {
            found.push(format!("`{path}` is not there"));
        }
    }
    none("ARCHITECTURE.md is the map of what is there.", &found);
}

#[test]
fn every_test_that_the_documents_name_exists() {
    let sources = tree();
    let mut tests = BTreeSet::new();
    for file in sources.iter().filter(|f| f.is_rust()) {
        tests.extend(
            file.code()
                .filter_map(|(_, line)| line.split_once("fn ")?.1.split_once('('))
                .map(|(name, _)| name),
        );
    }
    let mut found = Vec::new();
    for file in sources.iter().filter(|f| f.path == "ARCHITECTURE.md" || f.path.starts_with("docs/")) {
        for name in quoted(&file.text) {
            // A test's name is a sentence: but for bounds, and DuckDB's own functions, no other name has four words.
            let words = name.split('_').count();
            let plain = name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
            let other = name.ends_with("_max") || name.ends_with("_min") || name.starts_with("duckdb_");
            if plain && words >= 4 && !other && !tests.contains(name) {
                found.push(format!("{}: `{name}`", file.path));
            }
        }
    }
    none("A document names a test that is not there (a promise without proof, or a renamed test).", &found);
}

/// What stands between single backticks, outside blocks of code.
fn quoted(markdown: &str) -> impl Iterator<Item = &str> {
    let mut block = false;
    markdown
        .lines()
        .filter(move |line| {
            let fence = line.trim_start().starts_with("```");
            block ^= fence;
            !block && !fence
        })
        .flat_map(|line| line.split('`').skip(1).step_by(2))
}

#[test]
fn no_test_is_ignored_without_a_reason() {
    let bare = concat!("#[igno", "re]");
    let mut found = Vec::new();
    for file in tree().iter().filter(|f| f.is_rust()) {
        found
            .extend(file.code().filter(|(_, l)| l.contains(bare)).map(|(n, _)| format!("{}:{n}", file.path)));
    }
    none("An ignored test says why: #[ignore = \"…\"].", &found);
}

#[test]
fn no_file_is_longer_than_people_read() {
    let mut found = Vec::new();
    for file in tree().iter().filter(|f| f.is_rust()) {
        let lines = file.text.lines().count();
        let excused = LONG.iter().any(|(path, _)| *path == file.path);
        if (lines > LINES_MAX) != excused {
            found.push(format!(
                "{}: {lines} lines{}",
                file.path,
                if excused { ", and needs no excuse any more" } else { "" }
            ));
        }
    }
    none("A file of more than 500 lines becomes a folder, or has its reason in LONG (tidy.rs).", &found);
}

#[test]
fn nothing_committed_knows_the_machine_it_was_written_on() {
    // Written in two parts, so that this file does not break its own rule.
    let homes = [concat!("/ro", "ot/"), concat!("/ho", "me/"), concat!("/wo", "rk/"), concat!("/Us", "ers/")];
    let mirrors = [
        concat!("index", "-url"),
        concat!("--regi", "stry"),
        concat!("regis", "try="),
        concat!("replace", "-with"),
        concat!("\"resol", "ved\""),
    ];
    let public = "registry+https://github.com/rust-lang/crates.io-index";
    let mut found = Vec::new();
    for file in tree() {
        for (number, line) in (1..).zip(file.text.lines()) {
            // A path begins a word: `s3://bucket/work/` and `a/root/b` are none.
            let path = homes.iter().any(|home| {
                line.match_indices(home).any(|(at, _)| {
                    line[..at]
                        .chars()
                        .next_back()
                        .is_none_or(|c| c.is_whitespace() || "\"'`(=:[,".contains(c))
                })
            });
            let mirror = mirrors.iter().any(|mirror| line.contains(mirror));
            let source = file.path == "Cargo.lock" && line.starts_with("source = ") && !line.contains(public);
            if path || mirror || source {
                found.push(format!(
                    "{}:{number}: {}",
                    file.path,
                    line.trim().chars().take(100).collect::<String>()
                ));
            }
        }
    }
    none("A committed file names a path or a package mirror of one machine.", &found);
}

#[test]
fn there_is_one_arrow() {
    let lock = fs::read_to_string(Path::new(ROOT).join("Cargo.lock")).unwrap();
    let count = lock.matches("\nname = \"arrow-array\"\n").count();
    assert_eq!(
        count, 1,
        "Cargo.lock has {count} versions of arrow-array: batches of one are no batches of the other"
    );
}
