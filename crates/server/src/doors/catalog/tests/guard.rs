use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn place() -> Place {
    Place { bucket: "lake".into(), prefix: "prod/w_a/".into() }
}

fn sent(body: &Value) -> Result<(), Held> {
    check(body.to_string().as_bytes(), &place(), Way::Sent)
}

fn read(body: &Value) -> Result<(), Held> {
    check(body.to_string().as_bytes(), &place(), Way::Read)
}

const ELSEWHERE: [&str; 19] = [
    "s3://lake/prod/w_b/t",
    "s3://lake/prod/w_aa/t",
    "s3://lake/prod/w_a",
    "s3://lake/prod/w_a/",
    "s3://other/prod/w_a/t",
    "s3a://lake/prod/w_a/t",
    "s3://lake/prod/w_a/../w_b/t",
    "s3://lake/prod/w_a/%2e%2E/w_b/t",
    "s3://lake/prod/w_a//t",
    "s3://lake/prod/w_a/./t",
    "s3://lake/prod/w_a/t?versionId=1",
    "s3://lake/prod/w_a/t#x",
    "s3://lake/prod/w_a/t\\x",
    "s3://lake/prod/w_a/ ",
    "s3://lake/prod/w_a/.. ",
    "s3://lake/prod/w_a/t\u{a0}",
    "file:///etc/passwd",
    "/etc/passwd",
    "",
];

#[test]
fn no_change_may_name_a_place_outside() {
    for address in ELSEWHERE {
        for body in [
            json!({"name": "t", "location": address}),
            json!({"updates": [{"action": "set-location", "location": address}]}),
            json!({"updates": [{"action": "set-properties", "updates": {"write.data.path": address}}]}),
            json!({"updates": [{"action": "set-properties", "updates": {"write.metadata.path": address}}]}),
            json!({"table-changes": [{"updates": [
                {"action": "add-snapshot", "snapshot": {"snapshot-id": 1, "manifest-list": address}}]}]}),
            json!({"updates": [{"action": "add-snapshot", "snapshot": {"manifests": [address]}}]}),
            json!({"updates": [{"action": "set-statistics", "statistics": {"statistics-path": address}}]}),
            json!({"namespace": ["n"], "properties": {"location": address}}),
            json!({"LOCATION": address}),
            json!({"location": [[address]]}),
            json!({"location": {"x": address}}),
        ] {
            assert!(matches!(sent(&body), Err(Held::Broken(_))), "{body}");
        }
    }
}

#[test]
fn no_change_may_redirect_an_engine() {
    for key in [
        "s3.endpoint",
        "S3.Endpoint",
        "s3.access-key-id",
        "client.region",
        "signer.uri",
        "custom-endpoint",
        "uri",
        "token",
        "credential",
        "credentials.x",
        "rest.sigv4-enabled",
    ] {
        for value in [json!("x"), json!(null), json!({"a": 1})] {
            let body = json!({"updates": [{"action": "set-properties", "updates": {key: value}}]});
            assert!(matches!(sent(&body), Err(Held::Broken(_))), "{key}");
        }
    }
}

#[test]
fn what_engines_really_send_passes() {
    let body = json!({"table-changes": [{
    "identifier": {"namespace": ["datasets"], "name": "t"},
    "requirements": [{"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": null}],
    "updates": [
        {"action": "add-snapshot", "snapshot": {"snapshot-id": 9_007_199_254_740_993_u64, "schema-id": 0,
            "manifest-list": "s3://lake/prod/w_a/0198/metadata/snap-1.avro", "summary": {"operation": "append"}}},
        {"action": "set-properties", "updates": {"write.parquet.compression-codec": "zstd"}},
        {"action": "set-location", "location": "s3://lake/prod/w_a/x=1%3A2/t/"},
    ]}]});
    assert_eq!(sent(&body), Ok(()));
    assert_eq!(read(&json!({"namespaces": [["a"], ["b", "c"]], "next-page-token": "xyz"})), Ok(()));
    assert_eq!(read(&json!({"metadata-location": null, "metadata-log": []})), Ok(()));
}

#[test]
fn only_what_is_read_may_name_the_root() {
    for root in ["s3://lake/prod/w_a", "s3://lake/prod/w_a/"] {
        let body = json!({"namespace": ["n"], "properties": {"location": root}});
        assert_eq!(read(&body), Ok(()));
        assert!(sent(&body).is_err());
        assert!(read(&json!({"manifest-list": root})).is_err());
    }
}

#[test]
fn a_key_that_stands_twice_is_seen_twice() {
    for body in [
        r#"{"location":"s3://lake/prod/w_b/t","location":"s3://lake/prod/w_a/t"}"#,
        r#"{"location":"s3://lake/prod/w_a/t","location":"s3://lake/prod/w_b/t"}"#,
        r#"{"loc\u0061tion":"s3://lake/prod/w_b/t"}"#,
    ] {
        assert!(matches!(check(body.as_bytes(), &place(), Way::Sent), Err(Held::Broken(_))), "{body}");
    }
}

#[test]
fn depth_without_end_is_refused_not_followed() {
    for depth in [200, 100_000] {
        let body = "[".repeat(depth) + &"]".repeat(depth);
        assert_eq!(check(body.as_bytes(), &place(), Way::Sent), Err(Held::Unreadable));
        let body = r#"{"a":"#.repeat(depth) + "1" + &"}".repeat(depth);
        assert_eq!(check(body.as_bytes(), &place(), Way::Read), Err(Held::Unreadable));
    }
}

#[test]
fn what_is_not_json_is_refused() {
    for body in ["", "{", "{}{}", "{\"a\":1,}", "\u{1}"] {
        assert_eq!(check(body.as_bytes(), &place(), Way::Sent), Err(Held::Unreadable), "{body}");
    }
}

proptest! {
    #[test]
    fn an_address_outside_is_found_at_any_depth(path in prop::collection::vec("[a-z]{1,4}|\\[\\]", 0..60), which in 0..ELSEWHERE.len()) {
        let mut body = json!({"manifest-list": ELSEWHERE[which]});
        for step in path {
            body = if step == "[]" { json!([0, body]) } else { json!({"ID": 1, step: body, "Z": null}) };
        }
        for way in [Way::Sent, Way::Read] {
            prop_assert!(check(body.to_string().as_bytes(), &place(), way).is_err());
        }
    }

    #[test]
    fn what_passes_lies_inside_by_every_reading(tail in "[a-z./%2eEfF5c?#\\\\]{0,16}") {
        let address = format!("s3://lake/prod/w_a/{tail}");
        if sent(&json!({"location": address})).is_ok() {
            let url = reqwest::Url::parse(&address.replacen("s3:", "http:", 1)).unwrap();
            prop_assert!(url.path().starts_with("/prod/w_a/"));
            prop_assert!(url.query().is_none() && url.fragment().is_none());
            prop_assert!(!tail.split('/').any(|part| part == ".." || part == "."));
        }
    }
}
