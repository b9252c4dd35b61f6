//! What may be asked at all, and of which keys. Plain code: no I/O, no clock.
//!
//! Given the head of a request as it stands on the wire, [`precheck`] hands on only what a well-behaved worker sends.
//! s3s reads more than that: presigned URLs, `SigV2`, POST forms, chunked signatures, dozens of sub-resources. What is not
//! understood here is refused, never ignored.

use http::request::Parts;
use http::{HeaderMap, Method, StatusCode, header};
use object_store::path::Path;

use crate::doors::Place;

/// Longest key S3 knows, in bytes.
const KEY_BYTES_MAX: usize = 1_024;

/// What may be said of a list; each word may appear once.
const LIST_WORDS: [&str; 7] =
    ["list-type", "prefix", "delimiter", "continuation-token", "start-after", "max-keys", "encoding-type"];

/// Headers that change what a request means in a way we do not carry out.
const FOREIGN_HEADERS: [&str; 10] = [
    "transfer-encoding",
    "x-amz-copy-source",
    "x-amz-copy-source-range",
    "x-amz-decoded-content-length",
    "x-amz-trailer",
    "x-amz-security-token",
    "if-match",
    "if-modified-since",
    "if-unmodified-since",
    "if-range",
];

/// Why a request does not even reach the signature check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refusal {
    #[error("the path is not spelled plainly")]
    Path,
    #[error("only a SigV4 signature in one Authorization header is taken")]
    Signature,
    #[error("the query holds a word that is unknown, repeated or out of place")]
    Query,
    #[error("the request carries a header or method that is not served here")]
    Header,
    #[error("the body has no length, or is too long")]
    Length,
}

impl Refusal {
    pub(super) fn status(self) -> StatusCode {
        if self == Self::Signature { StatusCode::FORBIDDEN } else { StatusCode::BAD_REQUEST }
    }
}

/// Refuses everything that is not plainly one of our operations, before s3s reads it.
pub(super) fn precheck(head: &Parts, part_bytes_max: u64) -> Result<(), Refusal> {
    let absolute = head.uri.scheme().is_some() || head.uri.authority().is_some();
    if absolute || !plainly_spelled(head.uri.path()) {
        return Err(Refusal::Path);
    }
    if !signed_in_header(&head.headers) {
        return Err(Refusal::Signature);
    }
    if !words_known(&head.method, head.uri.query().unwrap_or_default()) {
        return Err(Refusal::Query);
    }
    let served =
        [Method::GET, Method::HEAD, Method::PUT, Method::POST, Method::DELETE].contains(&head.method);
    // Any of them: who reads the first and who reads the last must come to the same.
    let form = head.headers.get_all(header::CONTENT_TYPE).iter().any(|kind| {
        String::from_utf8_lossy(kind.as_bytes()).trim_start().to_ascii_lowercase().starts_with("multipart/")
    });
    // "Only if there is nothing yet" is how every object is written here, said or not.
    let condition = head.headers.contains_key(header::IF_NONE_MATCH)
        && !(head.method == Method::PUT && only(&head.headers, header::IF_NONE_MATCH.as_str()) == Some("*"));
    let foreign = FOREIGN_HEADERS.iter().any(|name| head.headers.contains_key(*name));
    if !served || form || condition || foreign {
        return Err(Refusal::Header);
    }
    let length = only(&head.headers, header::CONTENT_LENGTH.as_str())
        // `parse` takes a plus, too.
        .filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()))
        .and_then(|text| text.parse::<u64>().ok());
    let body = [Method::PUT, Method::POST].contains(&head.method);
    match length {
        Some(bytes) if bytes > part_bytes_max => Err(Refusal::Length),
        None if body => Err(Refusal::Length),
        _ => Ok(()),
    }
}

/// The value of a header that is there exactly once.
fn only<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let mut values = headers.get_all(name).iter();
    let first = values.next()?.to_str().ok()?;
    values.next().is_none().then_some(first)
}

fn signed_in_header(headers: &HeaderMap) -> bool {
    let signature = only(headers, header::AUTHORIZATION.as_str())
        .is_some_and(|text| text.starts_with("AWS4-HMAC-SHA256 ") && text.contains("/s3/aws4_request"));
    let body = only(headers, "x-amz-content-sha256").is_some_and(|hash| {
        hash == "UNSIGNED-PAYLOAD" || hash.len() == 64 && hash.bytes().all(|byte| byte.is_ascii_hexdigit())
    });
    signature && body && only(headers, "x-amz-date").is_some()
}

/// Whether the raw path has one reading only: no empty, `.` or `..` segment, and nothing encoded that would make one.
fn plainly_spelled(path: &str) -> bool {
    let segments_plain = path.starts_with('/')
        && !path.contains("//")
        && path.split('/').all(|segment| segment != "." && segment != "..");
    let bytes = path.as_bytes();
    segments_plain
        && bytes.iter().enumerate().all(|(at, byte)| match byte {
            b'\\' | b'#' | 0..=b' ' | 0x7f => false,
            b'%' => bytes
                .get(at + 1..at + 3)
                .and_then(decoded)
                .is_some_and(|byte| !matches!(byte, b'.' | b'/' | b'\\' | 0..=0x1f | 0x7f)),
            _ => true,
        })
}

/// The byte behind two hexadecimal digits.
fn decoded(digits: &[u8]) -> Option<u8> {
    let [high, low] = digits else { return None };
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    Some(digit(*high)? << 4 | digit(*low)?)
}

fn words_known(method: &Method, query: &str) -> bool {
    let mut seen: Vec<&str> = Vec::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let word = pair.split_once('=').map_or(pair, |(word, _)| word);
        if seen.contains(&word) {
            return false;
        }
        seen.push(word);
    }
    // Each combination is an operation of ours. `GET key?partNumber=2` would read a part of an object, and `PUT key?uploadId=x` a
    // whole one: not served, and not to be mistaken for the plain form.
    match method.as_str() {
        "GET" => {
            seen.is_empty()
                || seen.contains(&"list-type") && seen.iter().all(|word| LIST_WORDS.contains(word))
        }
        "PUT" => {
            seen.is_empty() || seen.len() == 2 && seen.contains(&"partNumber") && seen.contains(&"uploadId")
        }
        "POST" => matches!(seen.as_slice(), ["uploads" | "uploadId" | "delete"]),
        "DELETE" => matches!(seen.as_slice(), [] | ["uploadId"]),
        _ => seen.is_empty(),
    }
}

/// Whether a key has one spelling only, which every backend agrees on.
pub(super) fn clean(key: &str) -> bool {
    !key.is_empty()
        && key.len() <= KEY_BYTES_MAX
        && key.split('/').all(|segment| !segment.is_empty() && segment != "." && segment != "..")
        && !key.chars().any(|char| char.is_control() || char == '\\')
}

/// Whether a place can be a boundary: without its trailing slash `w_a` would also be the beginning of `w_ab`.
fn is_boundary(place: &Place) -> bool {
    place.prefix.is_empty() || place.prefix.strip_suffix('/').is_some_and(clean)
}

/// The key as a path of the store, if it lies inside the place.
pub(super) fn inside(place: &Place, key: &str) -> Option<Path> {
    let allowed = is_boundary(place) && clean(key) && key.starts_with(&place.prefix);
    Path::parse(allowed.then_some(key)?).ok().filter(|path| path.as_ref() == key)
}

/// Whether everything that begins with this text lies inside the place.
pub(super) fn listable(place: &Place, prefix: &str) -> bool {
    let rest = prefix.strip_suffix('/').unwrap_or(prefix);
    is_boundary(place) && prefix.starts_with(&place.prefix) && (prefix.is_empty() || clean(rest))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn place(prefix: &str) -> Place {
        Place { bucket: "lake".into(), prefix: prefix.into() }
    }

    #[test]
    fn only_keys_below_the_place_are_inside() {
        let a = place("w_a/");
        assert!(inside(&a, "w_a/x=1%2F/ü.parquet").is_some());
        for key in [
            "w_a",
            "w_a/",
            "w_ab/x",
            "w_b/x",
            "w_a/../w_b/x",
            "w_a//x",
            "w_a/./x",
            "/w_a/x",
            "",
            "w_a/x\\y",
            "w_a/\n",
        ] {
            assert!(inside(&a, key).is_none(), "{key}");
        }
    }

    #[test]
    fn the_empty_place_is_the_whole_bucket() {
        assert!(inside(&place(""), "any/key").is_some() && listable(&place(""), ""));
        assert!(inside(&place(""), "../x").is_none());
    }

    #[test]
    fn a_place_without_its_slash_opens_nothing() {
        assert!(inside(&place("w_a"), "w_a/x").is_none() && !listable(&place("w_a"), "w_a/"));
    }

    #[test]
    fn lists_stay_inside() {
        let a = place("w_a/");
        for prefix in ["w_a/", "w_a/x", "w_a/x/"] {
            assert!(listable(&a, prefix), "{prefix}");
        }
        for prefix in ["", "w_", "w_a", "w_ab/", "w_a/../w_b/", "w_a//", "w_b/"] {
            assert!(!listable(&a, prefix), "{prefix}");
        }
    }

    #[test]
    fn a_path_has_one_reading() {
        for path in
            ["/lake/w_a/x", "/lake/w_a/x%3Dy%253D%20z", "/lake/", "/lake/w_a/..x", "/lake/w_a/%252e%252e/x"]
        {
            assert!(plainly_spelled(path), "{path}");
        }
        for path in [
            "",
            "lake",
            "//lake",
            "/a/../b",
            "/a/%2e%2e/b",
            "/a/.%2E/b",
            "/a%2fb",
            "/a%5Cb",
            "/a%00",
            "/a%0a",
            "/a%",
            "/a%g0",
            "/a\\b",
        ] {
            assert!(!plainly_spelled(path), "{path}");
        }
    }

    #[test]
    fn a_length_is_digits() {
        let length = |text: &str| {
            let head = http::Request::put("/lake/w_a/x")
                .header("authorization", "AWS4-HMAC-SHA256 Credential=K/20260101/us-east-1/s3/aws4_request")
                .header("x-amz-content-sha256", "UNSIGNED-PAYLOAD")
                .header("x-amz-date", "20260101T000000Z")
                .header("content-length", text);
            precheck(&head.body(()).unwrap().into_parts().0, 9)
        };
        assert_eq!(length("9"), Ok(()));
        for text in ["10", "+1", "-1", "", "1 ", "0x1", "1,1", "18446744073709551617"] {
            assert_eq!(length(text), Err(Refusal::Length), "{text}");
        }
    }

    #[test]
    fn query_words_are_known_and_stand_once() {
        let get = Method::GET;
        assert!(words_known(&get, "list-type=2&prefix=w_a%2F") && words_known(&get, ""));
        let wrong = [
            "prefix=a",
            "list-type=2&prefix=a&prefix=b",
            "acl",
            "versionId=1",
            "X-Amz-Signature=x",
            "partNumber=1",
            "%70refix=a&list-type=2",
        ];
        for query in wrong {
            assert!(!words_known(&get, query), "{query}");
        }
        let known = |method: Method, query: &str| words_known(&method, query);
        assert!(known(Method::PUT, "partNumber=1&uploadId=x") && known(Method::POST, "uploads="));
        assert!(known(Method::POST, "delete") && known(Method::DELETE, "uploadId=x"));
        for query in
            ["uploadId=x", "partNumber=1", "uploads", "list-type=2", "delete", "partNumber=1&uploadId=x&acl"]
        {
            assert!(!known(Method::PUT, query), "{query}");
        }
        for query in ["", "uploads&uploadId=x", "partNumber=1&uploadId=x", "delete&uploads", "list-type=2"] {
            assert!(!known(Method::POST, query), "{query}");
        }
        assert!(!known(Method::DELETE, "delete") && !known(Method::HEAD, "list-type=2"));
    }

    proptest! {
        #[test]
        fn no_key_leaves_its_place(key in "(w_a/|w_b/|\\.\\./|/|\\./|%2e|x|ü){0,8}") {
            if let Some(path) = inside(&place("w_a/"), &key) {
                prop_assert!(path.as_ref().starts_with("w_a/") && path.as_ref() == key);
                prop_assert!(path.parts().all(|part| part.as_ref() != ".." && part.as_ref() != "."));
            }
        }

        #[test]
        fn what_a_listable_prefix_begins_is_inside(prefix in "(w_a|w_ab|/|\\.\\.|x){0,6}", more in "[a-z]{1,4}") {
            if listable(&place("w_a/"), &prefix) {
                let key = format!("{prefix}{more}");
                prop_assert!(inside(&place("w_a/"), &key).is_some());
            }
        }

        #[test]
        fn a_plain_path_decodes_to_no_dots(path in "(/|%2[eEfF]|%5[cC]|\\.|x|%25){0,10}") {
            if plainly_spelled(&path) {
                let once = path.replace("%25", "%");
                prop_assert!(!once.split('/').any(|segment| segment == ".." || segment == "."));
            }
        }
    }
}
