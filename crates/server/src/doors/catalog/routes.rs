//! Which requests are served at all, and how their paths must be spelled. Pure.

use http::{Method, StatusCode, Uri};

use super::reply::Reply;

/// Query parameters that mean something on a route of ours; any other is refused.
const PARAMETERS: [&str; 5] = ["pageToken", "pageSize", "parent", "purgeRequested", "snapshots"];

/// A request of the Iceberg REST API that is served here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Route {
    /// Namespaces, one namespace, or the tables in one.
    Listing,
    /// A table's metadata.
    LoadTable,
    /// A table, perhaps only staged.
    CreateTable,
    /// A change of one table, or the completion of a staged one.
    CommitTable,
    /// Changes of several tables, all or none.
    CommitTransaction,
    /// Any other change.
    Change,
}

impl Route {
    /// Whether only a writer may ask for it.
    pub(super) fn needs_writer(self) -> bool {
        !matches!(self, Route::Listing | Route::LoadTable)
    }

    /// Whether a success carries a table: its metadata, and settings and credentials beside it.
    pub(super) fn answers_with_table(self) -> bool {
        matches!(self, Route::LoadTable | Route::CreateTable | Route::CommitTable)
    }
}

/// The route of a method and the segments behind the prefix. Not here: views, register (any metadata file), scan plans,
/// credentials, metrics, tokens.
pub(super) fn route(method: &Method, segments: &[&str]) -> Option<Route> {
    Some(match (method.as_str(), segments) {
        ("GET", ["namespaces"] | ["namespaces", _] | ["namespaces", _, "tables"])
        | ("HEAD", ["namespaces", _] | ["namespaces", _, "tables", _]) => Route::Listing,
        ("GET", ["namespaces", _, "tables", _]) => Route::LoadTable,
        ("POST", ["namespaces", _, "tables"]) => Route::CreateTable,
        ("POST", ["namespaces", _, "tables", _]) => Route::CommitTable,
        ("POST", ["transactions", "commit"]) => Route::CommitTransaction,
        ("POST", ["namespaces"] | ["namespaces", _, "properties"] | ["tables", "rename"])
        | ("DELETE", ["namespaces", _] | ["namespaces", _, "tables", _]) => Route::Change,
        _ => return None,
    })
}

/// A request whose spelling holds.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Asked<'a> {
    /// `/v1/config`, with the warehouse's name where one is given.
    Config(Option<String>),
    /// Something below `/v1/{prefix}`.
    Below {
        /// As it stands on the wire.
        prefix: &'a str,
        /// What follows it.
        segments: Vec<&'a str>,
        /// Path and query behind the prefix, to be sent on unchanged.
        rest: &'a str,
    },
}

/// Reads the request's target. An ambiguous spelling is refused rather than understood: two parsers may read it in two ways.
pub(super) fn asked<'a>(method: &Method, uri: &'a Uri) -> Result<Asked<'a>, Reply> {
    let misspelled = || Reply::bad_request("the path is not spelled as an Iceberg client would");
    if uri.authority().is_some() || uri.scheme().is_some() {
        return Err(misspelled());
    }
    let Some(segments) = split(uri.path()) else {
        return Err(if asks_for_no_table(method, uri.path()) { no_such_table() } else { misspelled() });
    };
    let query = parameters(uri.query().unwrap_or_default()).ok_or_else(misspelled)?;
    match segments.as_slice() {
        ["v1", "config"] if method == Method::GET => {
            Ok(Asked::Config(query.into_iter().find(|(key, _)| key == "warehouse").map(|(_, value)| value)))
        }
        ["v1", prefix, rest @ ..] if !rest.is_empty() => {
            // A purge would remove files at a worker's word, and others' metadata may name them.
            let purges = query.iter().any(|(key, value)| key == "purgeRequested" && value != "false");
            if purges || !query.iter().all(|(key, _)| PARAMETERS.contains(&key.as_str())) {
                return Err(Reply::bad_request("the request has a parameter that is not served here"));
            }
            let path = uri.path_and_query().ok_or_else(misspelled)?.as_str();
            let behind = path.strip_prefix("/v1/").and_then(|path| path.strip_prefix(prefix));
            Ok(Asked::Below { prefix, segments: rest.to_vec(), rest: behind.ok_or_else(misspelled)? })
        }
        _ => Err(not_served()),
    }
}

/// The refusal of everything that has no route.
pub(super) fn not_served() -> Reply {
    Reply::error(StatusCode::FORBIDDEN, "ForbiddenException", "this route is not served")
}

/// DuckDB takes `FROM 's3://…'` for a table's name first, and for a file only when there is no such table. A name with a slash
/// is never sent on, so there is none.
fn asks_for_no_table(method: &Method, path: &str) -> bool {
    let segments: Vec<&str> = path.split('/').collect();
    let reads = method == Method::GET || method == Method::HEAD;
    match segments.as_slice() {
        ["", "v1", prefix, "namespaces", namespace, "tables", name] => {
            reads
                && is_unambiguous(prefix)
                && is_unambiguous(namespace)
                && decoded(name, b"").is_some_and(|n| n.contains(&b'/'))
        }
        _ => false,
    }
}

fn no_such_table() -> Reply {
    Reply::error(StatusCode::NOT_FOUND, "NoSuchTableException", "no table has a name with a slash")
}

/// The path's segments, or none if there is a second way to read it.
fn split(path: &str) -> Option<Vec<&str>> {
    let segments: Vec<&str> = path.strip_prefix('/')?.split('/').collect();
    segments.iter().all(|segment| is_unambiguous(segment)).then_some(segments)
}

fn is_unambiguous(segment: &str) -> bool {
    // 1F separates the levels of a namespace; no other control character, no slash and no backslash has a place in a name.
    let harmless = |byte: u8| byte == 0x1f || !(byte.is_ascii_control() || b"/\\".contains(&byte));
    decoded(segment, b"!$&'()*+,;=:@").is_some_and(|name| {
        !name.is_empty() && name != b"." && name != b".." && name.iter().copied().all(harmless)
    })
}

/// The name that a segment spells, which [`asked`] has accepted.
pub(super) fn name(segment: &str) -> String {
    let bytes = decoded(segment, b"!$&'()*+,;=:@").unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The levels of a namespace that a segment spells.
pub(super) fn levels(segment: &str) -> Vec<String> {
    name(segment).split('\u{1f}').map(str::to_owned).collect()
}

/// The query's pairs, decoded.
fn parameters(query: &str) -> Option<Vec<(String, String)>> {
    // `+` is left out of the plain ones: some read it as a blank.
    let text = |part: &str| String::from_utf8(decoded(part, b"!$()*,;:@/")?).ok();
    let pair = |pair: &str| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        Some((text(key)?, text(value)?))
    };
    query.split('&').filter(|part| !part.is_empty()).map(pair).collect()
}

/// Percent-decodes; none where a byte is neither unreserved, nor in `plain`, nor part of a whole escape.
fn decoded(text: &str, plain: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = text.bytes();
    let mut out = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        out.push(match byte {
            b'%' => nibble(bytes.next()?)? << 4 | nibble(bytes.next()?)?,
            _ if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) || plain.contains(&byte) => byte,
            _ => return None,
        });
    }
    Some(out)
}

fn nibble(byte: u8) -> Option<u8> {
    char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn needs_writer(method: &str, path: &str) -> Option<bool> {
        let segments: Vec<&str> = path.split('/').collect();
        route(&Method::from_bytes(method.as_bytes()).unwrap(), &segments).map(Route::needs_writer)
    }

    #[test]
    fn a_reader_has_only_routes_that_change_nothing() {
        assert_eq!(needs_writer("GET", "namespaces"), Some(false));
        assert_eq!(needs_writer("GET", "namespaces/n/tables/t"), Some(false));
        assert_eq!(needs_writer("HEAD", "namespaces/n/tables/t"), Some(false));
        for (method, path) in [
            ("POST", "namespaces"),
            ("POST", "namespaces/n/properties"),
            ("POST", "namespaces/n/tables"),
            ("POST", "namespaces/n/tables/t"),
            ("POST", "tables/rename"),
            ("POST", "transactions/commit"),
            ("DELETE", "namespaces/n"),
            ("DELETE", "namespaces/n/tables/t"),
        ] {
            assert_eq!(needs_writer(method, path), Some(true), "{method} {path}");
        }
    }

    #[test]
    fn nobody_has_the_routes_that_reach_further() {
        for (method, path) in [
            ("POST", "oauth/tokens"),
            ("GET", "namespaces/n/views"),
            ("POST", "namespaces/n/views"),
            ("POST", "namespaces/n/register"),
            ("POST", "namespaces/n/tables/t/plan"),
            ("GET", "namespaces/n/tables/t/credentials"),
            ("POST", "namespaces/n/tables/t/metrics"),
            ("PUT", "namespaces/n/tables/t"),
            ("PATCH", "namespaces/n"),
            ("HEAD", "namespaces"),
            ("GET", "namespaces/n/tables/t/extra"),
        ] {
            assert_eq!(needs_writer(method, path), None, "{method} {path}");
        }
    }

    #[test]
    fn a_path_with_two_readings_is_refused() {
        for path in [
            "/v1/p/../q/namespaces",
            "/v1/p/%2e%2e/q/namespaces",
            "/v1/p/.%2E/namespaces",
            "/v1/p/namespaces/./tables",
            "/v1//p/namespaces",
            "/v1/p/namespaces/",
            "/v1/p/namespaces/a%2fb",
            "/v1/p/namespaces/a%5Cb",
            "/v1/p/namespaces/a%00b",
            "/v1/p/namespaces/a%0d%0ab",
            "/v1/p/namespaces/a%zz",
            "/v1/p/namespaces/a%2",
            "/v1/p/namespaces/a|b",
            "/v1/p/namespaces?x=a'b",
            "/v1/p/namespaces?unknown=1",
            "/v1/p/namespaces/n/tables/t?purgeRequested=true",
            "http://elsewhere/v1/p/namespaces",
        ] {
            let uri: Uri = path.parse().unwrap();
            let status = asked(&Method::GET, &uri).unwrap_err().status;
            assert_eq!(status, StatusCode::BAD_REQUEST, "{path}");
        }
    }

    #[test]
    fn a_file_is_not_a_table() {
        let status = |method: Method, path: &str| asked(&method, &path.parse().unwrap()).unwrap_err().status;
        let file = "/v1/p/namespaces/n/tables/s3%3A%2F%2Flakehouse%2Fx.parquet";
        assert_eq!(status(Method::GET, file), StatusCode::NOT_FOUND);
        assert_eq!(status(Method::POST, file), StatusCode::BAD_REQUEST);
        assert_eq!(status(Method::GET, "/v1/p/namespaces/%2e%2e/tables/a%2Fb"), StatusCode::BAD_REQUEST);
    }

    #[test]
    fn names_may_be_anything_an_iceberg_client_encodes() {
        for path in [
            "/v1/p/namespaces/a%1Fb/tables/%C3%BC%20x%3F%23%25",
            "/v1/p/namespaces/n/tables?pageToken=&pageSize=100",
            "/v1/p/namespaces/n/tables/%252e%252e",
            "/v1/p/namespaces?parent=a%1Fb",
            "/v1/p/namespaces/n/tables/t?purgeRequested=false",
        ] {
            let uri: Uri = path.parse().unwrap();
            assert!(
                matches!(asked(&Method::GET, &uri), Ok(Asked::Below { prefix: "p", rest, .. }) if format!("/v1/p{rest}") == path),
                "{path}"
            );
        }
        let uri: Uri = "/v1/config?warehouse=dev%2Fw_a".parse().unwrap();
        assert_eq!(asked(&Method::GET, &uri).unwrap(), Asked::Config(Some("dev/w_a".into())));
    }

    proptest! {
        #[test]
        fn what_passes_has_the_prefix_where_it_says(path in "/(v1|V1|%76%31)?/(p|q|%70|\\.|%2e){0,3}/?([a-z%./2e5cf\\\\]{0,12})") {
            if let Ok(uri) = path.parse::<Uri>()
                && let Ok(Asked::Below { prefix, rest, .. }) = asked(&Method::GET, &uri)
            {
                let whole = format!("http://h{path}");
                let url = reqwest::Url::parse(&whole).unwrap();
                prop_assert_eq!(url.path(), uri.path());
                prop_assert_eq!(url.path().split('/').nth(2), Some(prefix));
                prop_assert_eq!(format!("/v1/{prefix}{rest}"), uri.path());
            }
        }
    }
}
