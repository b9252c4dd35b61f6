//! What of the catalog's answer reaches the worker. Pure.
//!
//! What is read is checked. The answer to a change is only relieved of our settings and credentials: the change has been
//! made, and an engine that is told otherwise deletes the files that the table now needs.

use std::fmt;

use bytes::Bytes;
use http::StatusCode;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::Place;
use super::guard::{self, Held, Way};
use super::reply::Reply;
use super::routes::Route;
use super::times;
use super::upstream::{Answer, CatalogError};

/// Beside a table's metadata these tell an engine which credentials and endpoints to use.
const OURS: [&str; 3] = ["config", "storage-credentials", "remote-signing"];

/// The answer to something read, checked.
pub(super) fn read(route: Route, answer: Answer, place: &Place) -> Result<Reply, Reply> {
    if !answer.status.is_success() {
        return Err(Reply::from_failure(&answer));
    }
    if answer.body.is_empty() {
        return Ok(Reply { status: answer.status, body: answer.body });
    }
    let held = |held: Held| {
        tracing::warn!(reason = %held, "catalog answer held back");
        match held {
            Held::Unreadable => CatalogError::Unusable { reason: "it is not JSON" }.into(),
            Held::Broken(sentence) => Reply::forbidden(&sentence),
        }
    };
    if !route.answers_with_table() {
        guard::check(&answer.body, place, Way::Read).map_err(held)?;
        return Ok(Reply { status: answer.status, body: answer.body });
    }
    let Some(fields) = Fields::of(&answer.body) else { return Err(held(Held::Unreadable)) };
    for (key, text) in fields.kept() {
        guard::check_field(key, text, place, Way::Read).map_err(held)?;
    }
    Ok(Reply { status: answer.status, body: times::in_order(fields.without_ours(&answer.body)) })
}

/// The answer to a change: never refused, never cut short.
pub(super) fn changed(route: Route, answer: Answer) -> Reply {
    if !answer.status.is_success() {
        return Reply::from_failure(&answer);
    }
    let body = if route.answers_with_table() && !answer.body.is_empty() {
        // What is not an object holds nothing that an engine could read, but may hold what it should not.
        Fields::of(&answer.body).map_or_else(Bytes::new, |fields| fields.without_ours(&answer.body))
    } else {
        answer.body
    };
    Reply { status: answer.status, body }
}

/// A success that the catalog did not spell out: the table was read back and has the change.
pub(super) fn found_done(route: Route, loaded: &Bytes) -> Answer {
    if route == Route::CommitTable {
        // What a load brings is what a commit answers with.
        Answer::new(StatusCode::OK, loaded.clone())
    } else {
        Answer::new(StatusCode::NO_CONTENT, Bytes::new())
    }
}

/// An object's fields in their order, each as it stands in the text: numbers keep every digit.
struct Fields<'a>(Vec<(String, &'a RawValue)>);

impl<'a> Fields<'a> {
    fn of(text: &'a [u8]) -> Option<Self> {
        serde_json::from_slice(text).ok()
    }

    fn kept(&self) -> impl Iterator<Item = (&str, &'a RawValue)> {
        self.0.iter().map(|(key, text)| (key.as_str(), *text)).filter(|(key, _)| !OURS.contains(key))
    }

    fn without_ours(&self, original: &Bytes) -> Bytes {
        if self.kept().count() == self.0.len() {
            return original.clone();
        }
        let mut text = String::with_capacity(original.len());
        for (key, value) in self.kept() {
            text.push(if text.is_empty() { '{' } else { ',' });
            text.push_str(&serde_json::Value::from(key).to_string());
            text.push(':');
            text.push_str(value.get());
        }
        text.push_str(if text.is_empty() { "{}" } else { "}" });
        text.into()
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Fields<'a> {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        struct Pairs;
        impl<'de> Visitor<'de> for Pairs {
            type Value = Vec<(String, &'de RawValue)>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(pairs)
            }
        }
        json.deserialize_map(Pairs).map(Fields)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const METADATA: &str =
        r#"{"snapshot-id":99999999999999999999999999,"x":1.10, "location":"s3://lake/w_a/t"}"#;

    fn place() -> Place {
        Place { bucket: "lake".into(), prefix: "w_a/".into() }
    }

    fn ok(body: String) -> Answer {
        Answer::new(StatusCode::OK, body)
    }

    #[test]
    fn our_settings_go_and_every_digit_stays() {
        let body = format!(
            r#"{{"config":{{"s3.endpoint":"http://r2"}},"metadata":{METADATA},"storage-credentials":[{{"k":"v"}}],"remote-signing":true}}"#
        );
        let reply = read(Route::LoadTable, ok(body), &place()).unwrap();
        assert_eq!(reply.body, format!(r#"{{"metadata":{METADATA}}}"#));
    }

    #[test]
    fn an_answer_with_nothing_to_remove_stays_as_it_is() {
        let body = format!(r#"{{ "metadata" : {METADATA} ,"etag":1e3 }}"#);
        assert_eq!(read(Route::LoadTable, ok(body.clone()), &place()).unwrap().body, body);
        assert_eq!(changed(Route::CommitTable, ok(body.clone())).body, body);
    }

    #[test]
    fn a_table_that_points_elsewhere_cannot_be_read() {
        for body in [
            r#"{"metadata":{"snapshots":[{"manifest-list":"s3://lake/w_b/snap.avro"}]}}"#,
            r#"{"metadata-location":"s3://lake/w_b/m.json","metadata":{}}"#,
            r#"{"metadata":{"properties":{"write.data.path":"s3://lake/w_b"}}}"#,
            r#"{"metadata":{"properties":{"s3.endpoint":"http://x"}}}"#,
            r#"{"metadata":{"statistics":[{"statistics-path":"s3://lake/w_b/s.puffin"}]}}"#,
        ] {
            let status = read(Route::LoadTable, ok(body.into()), &place()).unwrap_err().status;
            assert_eq!(status, StatusCode::FORBIDDEN, "{body}");
        }
    }

    #[test]
    fn the_answer_to_a_change_is_never_turned_into_an_error() {
        for body in [
            "",
            "not json",
            "[1]",
            r#"{"metadata":{"location":"s3://lake/w_b/t"},"config":{"token":"t"}}"#,
            &("{\"a\":".repeat(100_000) + "1" + &"}".repeat(100_000)),
        ] {
            for route in [Route::CreateTable, Route::CommitTable, Route::CommitTransaction, Route::Change] {
                assert_eq!(changed(route, ok(body.into())).status, StatusCode::OK);
            }
        }
        let reply = changed(Route::CommitTable, ok(r#"{"metadata":{},"config":{"token":"t"}}"#.into()));
        assert_eq!(reply.body, r#"{"metadata":{}}"#);
    }
}
