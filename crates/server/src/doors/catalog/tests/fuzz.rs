//! The walk over metadata against another one, written otherwise: what passes names no place outside, at any depth.
//!
//! `PROPTEST_CASES` says how many cases; `just fuzz` sets it high.

use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::super::guard::{Way, check};
use crate::doors::Place;

const KEYS: &str = "(location|Location|LOCATION|metadata-file|manifest-list|manifests|path|data-file|write\\.data\\.path|write\\.metadata\\.path|write\\.object-storage\\.path|statistics-path|x-location|s3\\.endpoint|S3\\.access-key-id|token|uri|credential|client\\.region|config|properties|updates|name|comment|id)";
const TEXTS: &str = "(s3://lake/w_a/|s3://lake/w_b/|s3a://lake/w_a/|S3://lake/w_a/|s3://lake/w_ab/|s3://LAKE/w_a/|http://h/|/etc/|file:///|)(t|\\.\\./w_b|\\./t|%2e%2e/w_b|%252e|/t|t\\?x|t#x|t/|\\\\t|ü|t%2Fx| |)(/m\\.json|)";

fn texts() -> impl Strategy<Value = Value> {
    let leaf =
        prop_oneof![TEXTS.prop_map(Value::from), any::<i64>().prop_map(Value::from), Just(Value::Null)];
    leaf.prop_recursive(5, 40, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((KEYS, inner), 0..4)
                .prop_map(|pairs| Value::Object(pairs.into_iter().collect::<Map<_, _>>())),
        ]
    })
}

/// Every text at or below a key that announces an address; and whether a key stands there that may not.
fn collected<'v>(value: &'v Value, below: Option<&'v str>, addresses: &mut Vec<(&'v str, &'v str)>) -> bool {
    match value {
        Value::String(text) => {
            addresses.extend(below.map(|key| (key, text.as_str())));
            true
        }
        Value::Array(all) => all.iter().all(|value| collected(value, below, addresses)),
        Value::Object(map) => map.iter().all(|(key, value)| {
            let low = key.to_lowercase();
            let forbidden = ["endpoint", "access-key", "token", "uri", "credential", "region"];
            let address = ["location", "path", "-file", "manifest"].iter().any(|word| low.contains(word));
            !forbidden.iter().any(|word| low.contains(word))
                && collected(value, if address { Some(key) } else { below }, addresses)
        }),
        _ => true,
    }
}

/// By a URL's own reading, which resolves dots and folds slashes.
fn below_the_place(address: &str) -> bool {
    let Some(rest) = address.strip_prefix("s3://") else { return false };
    let Ok(url) = reqwest::Url::parse(&format!("http://{rest}")) else { return false };
    url.host_str() == Some("lake")
        && rest.starts_with("lake/")
        && url.path().starts_with("/w_a/")
        && url.query().is_none()
        && url.fragment().is_none()
        && url.path().split('/').filter(|part| !part.is_empty()).count()
            == rest.split('/').filter(|part| !part.is_empty()).count() - 1
}

proptest! {
    #[test]
    fn fuzz_what_passes_names_no_place_outside(body in texts(), read in any::<bool>()) {
        let place = Place { bucket: "lake".into(), prefix: "w_a/".into() };
        let way = if read { Way::Read } else { Way::Sent };
        if check(body.to_string().as_bytes(), &place, way).is_ok() {
            let mut addresses = Vec::new();
            prop_assert!(collected(&body, None, &mut addresses), "{body}");
            for (key, address) in addresses {
                let root = read && key.eq_ignore_ascii_case("location") && address.trim_end_matches('/') == "s3://lake/w_a";
                prop_assert!(root || below_the_place(address), "{key} {address}");
            }
        }
    }

    #[test]
    fn fuzz_no_bytes_make_the_walk_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), cut in 0..200_usize, body in texts()) {
        let place = Place { bucket: "lake".into(), prefix: "w_a/".into() };
        let _ = check(&bytes, &place, Way::Sent);
        let text = body.to_string();
        let cut = &text.as_bytes()[..cut.min(text.len())];
        let _ = check(&[cut, &bytes].concat(), &place, Way::Read);
    }
}

#[test]
fn the_other_walk_can_tell() {
    let mut addresses = Vec::new();
    let body = json!({"a": [{"location": ["s3://lake/w_b/t"]}]});
    assert!(collected(&body, None, &mut addresses));
    assert_eq!(addresses, [("location", "s3://lake/w_b/t")]);
    assert!(!below_the_place("s3://lake/w_b/t") && !below_the_place("s3://lake/w_a/../w_b/t"));
    assert!(below_the_place("s3://lake/w_a/t"));
    assert!(!collected(&json!({"x": {"s3.endpoint": 1}}), None, &mut Vec::new()));
}
