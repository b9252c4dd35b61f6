//! The pure checks against readings of their own: what is let through lies inside by a second, independently written one.
//!
//! `PROPTEST_CASES` says how many cases; `just fuzz` sets it high.

use http::{Method, Request};
use proptest::prelude::*;

use super::super::guard::{inside, listable, precheck};
use crate::doors::Place;

/// Pieces that paths and keys go wrong with.
const PIECES: &str =
    "(w_a|w_b|lake|/|//|\\.|\\.\\.|%2e|%2E|%2f|%5c|%25|%00|%0a|%c0%ae|%|%2|x|ü|\\\\|;|\\?|#| |:|@|\\*){0,9}";

/// Decodes once, and resolves dots as a file system or a URL parser would. None where there is no reading.
fn resolved(path: &str) -> Option<Vec<Vec<u8>>> {
    let mut bytes = Vec::new();
    let mut rest = path.as_bytes();
    while let Some((byte, tail)) = rest.split_first() {
        if *byte == b'%' {
            let digits = std::str::from_utf8(tail.get(..2)?).ok()?;
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
            rest = &tail[2..];
        } else {
            bytes.push(if *byte == b'\\' { b'/' } else { *byte });
            rest = tail;
        }
    }
    let mut stack: Vec<Vec<u8>> = Vec::new();
    for part in bytes.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => drop(stack.pop()),
            part => stack.push(part.to_vec()),
        }
    }
    Some(stack)
}

fn head(method: &str, target: &str, headers: &[(String, String)]) -> Option<http::request::Parts> {
    let mut request = Request::builder().method(Method::from_bytes(method.as_bytes()).ok()?).uri(target);
    for (name, value) in headers {
        request = request.header(name, value);
    }
    Some(request.body(()).ok()?.into_parts().0)
}

fn signed() -> Vec<(String, String)> {
    let text = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    vec![
        text("authorization", "AWS4-HMAC-SHA256 Credential=K/20260101/us-east-1/s3/aws4_request, x"),
        text("x-amz-content-sha256", "UNSIGNED-PAYLOAD"),
        text("x-amz-date", "20260101T000000Z"),
    ]
}

proptest! {
    #[test]
    fn fuzz_a_path_that_passes_is_where_it_says(tail in PIECES) {
        let place = Place { bucket: "lake".into(), prefix: "w_a/".into() };
        let path = format!("/lake/{tail}");
        let Some(head) = head("GET", &path, &signed()) else { return Ok(()) };
        if precheck(&head, 1).is_ok() {
            // No query: what stands before one is the path.
            let wire = head.uri.path();
            let parts = resolved(wire).expect("a path that passes can be read");
            let key = parts[1..].join(&b'/');
            if let Some(found) = std::str::from_utf8(&key).ok().and_then(|key| inside(&place, key)) {
                prop_assert_eq!(&parts[0], b"lake");
                prop_assert_eq!(&parts[1], b"w_a");
                prop_assert!(parts.len() > 2, "the place itself is no key");
                prop_assert_eq!(found.as_ref().as_bytes(), &key);
            }
            // And nothing was resolved: each part stands on the wire, in this order.
            let plain = wire.strip_suffix('/').unwrap_or(wire);
            prop_assert_eq!(plain.matches('/').count(), parts.len());
        }
    }

    #[test]
    fn fuzz_a_key_is_inside_by_any_reading(key in PIECES, prefix in "(|w_a/|a/w_a/|w_a|/|\\.\\./)") {
        let place = Place { bucket: "lake".into(), prefix: prefix.clone() };
        if inside(&place, &key).is_some() {
            // A store takes a key as it stands, a folder resolves it.
            let plain = key.replace('%', "%25");
            let joined = resolved(&plain).unwrap().join(&b'/');
            prop_assert_eq!(&joined, key.as_bytes());
            prop_assert!(key.starts_with(&prefix) && key.len() > prefix.len());
            prop_assert!(prefix.is_empty() || prefix.ends_with('/'));
        }
        if listable(&place, &key) {
            prop_assert!(key.starts_with(&prefix));
            prop_assert!(!key.split('/').any(|part| part == ".." || part == "."));
        }
    }

    #[test]
    fn fuzz_a_head_that_passes_has_one_meaning(
        method in "(GET|HEAD|PUT|POST|DELETE|PATCH|get|COPY|CONNECT)",
        query in "((list-type|prefix|uploads|uploadId|partNumber|acl|delete|X-Amz-Signature|%70refix|versionId)(=|=2|=w_a%2F|)?&?){0,4}",
        more in prop::collection::vec(
            (
                "(content-length|transfer-encoding|authorization|x-amz-date|x-amz-content-sha256|x-amz-copy-source|content-type|range|x|Content-Length|if-match)",
                "(0|1|7|\\+1|chunked|AWS x|UNSIGNED-PAYLOAD|multipart/form-data; boundary=x| Multipart/x|bytes=0-1|/lake/w_b/x)",
            ),
            0..4,
        ),
    ) {
        let headers = [signed(), more].concat();
        let Some(head) = head(&method, &format!("/lake/w_a/x?{query}"), &headers) else { return Ok(()) };
        if precheck(&head, 4).is_ok() {
            let values = |name: &str| -> Vec<&str> {
                headers.iter().filter(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str()).collect()
            };
            for one in ["authorization", "x-amz-date", "x-amz-content-sha256"] {
                prop_assert_eq!(values(one).len(), 1, "{}", one);
            }
            for none in ["transfer-encoding", "x-amz-copy-source", "if-match"] {
                prop_assert!(values(none).is_empty(), "{}", none);
            }
            prop_assert!(values("content-type").iter().all(|kind| !kind.to_lowercase().contains("multipart")));
            prop_assert!(["GET", "HEAD", "PUT", "POST", "DELETE"].contains(&method.as_str()));
            if ["PUT", "POST"].contains(&method.as_str()) {
                let lengths = values("content-length");
                prop_assert!(lengths.len() == 1 && lengths[0].bytes().all(|b| b.is_ascii_digit()), "{:?}", lengths);
                prop_assert!(lengths[0].parse::<u64>().unwrap() <= 4);
            }
            let words: Vec<&str> = query.split('&').filter(|w| !w.is_empty()).map(|w| w.split('=').next().unwrap()).collect();
            let mut once = words.clone();
            once.sort_unstable();
            once.dedup();
            prop_assert_eq!(once.len(), words.len());
            for word in ["acl", "X-Amz-Signature", "%70refix", "versionId"] {
                prop_assert!(!words.contains(&word));
            }
        }
    }
}
