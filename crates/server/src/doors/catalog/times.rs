//! The times of a table's snapshots, as DuckDB needs them. Pure.
//!
//! DuckDB 1.5.5 does not read the current snapshot but the last one by time (of those not after its transaction's start), and commits on
//! the current one. Where another engine's clock was behind, the last commit has a time before its predecessor's: it would stay unseen, and
//! an UPDATE would be made of rows that are no more. Iceberg lets times go back by a minute.

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

#[derive(Deserialize)]
struct Loaded<'a> {
    #[serde(borrow)]
    metadata: Metadata<'a>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Metadata<'a> {
    current_snapshot_id: i64,
    #[serde(borrow)]
    snapshot_log: Vec<Entry<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Entry<'a> {
    snapshot_id: i64,
    #[serde(borrow)]
    timestamp_ms: &'a RawValue,
}

impl Entry<'_> {
    fn ms(&self) -> Option<i64> {
        self.timestamp_ms.get().parse().ok()
    }
}

/// A table's answer in which the current snapshot has the last time of the log; nothing else is another, to the digit.
pub(super) fn in_order(body: Bytes) -> Bytes {
    corrected(&body).map_or(body, Bytes::from)
}

fn corrected(body: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(body).ok()?;
    let Loaded { metadata } = serde_json::from_str(text).ok()?;
    let (last, before) = metadata.snapshot_log.split_last()?;
    let latest = before.iter().filter_map(Entry::ms).max()?;
    if last.snapshot_id != metadata.current_snapshot_id || last.ms()? > latest {
        return None;
    }
    let digits = last.timestamp_ms.get();
    // It stands in the text.
    let at = (digits.as_ptr() as usize).checked_sub(text.as_ptr() as usize)?;
    let after = text.get(at + digits.len()..)?;
    Some(format!("{}{}{after}", text.get(..at)?, latest.checked_add(1)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(current: i64, log: &[(i64, i64)]) -> String {
        let log: Vec<_> =
            log.iter().map(|(id, ms)| format!(r#"{{"timestamp-ms":{ms}, "snapshot-id":{id}}}"#)).collect();
        format!(
            r#"{{"metadata":{{"x":1.10,"current-snapshot-id":{current},"snapshot-log":[{}],"y":99999999999999999999}}}}"#,
            log.join(",")
        )
    }

    fn of(text: &str) -> String {
        String::from_utf8(in_order(Bytes::from(text.to_owned())).to_vec()).unwrap()
    }

    #[test]
    fn the_current_snapshot_is_the_last_by_time() {
        let behind = table(3, &[(1, 100), (2, 200), (3, 150)]);
        assert_eq!(of(&behind), table(3, &[(1, 100), (2, 200), (3, 201)]));
        let at_once = table(2, &[(1, 100), (2, 100)]);
        assert_eq!(of(&at_once), table(2, &[(1, 100), (2, 101)]));
    }

    #[test]
    fn what_is_in_order_or_not_understood_stays_as_it_is() {
        for text in [
            table(3, &[(1, 100), (2, 200), (3, 201)]),
            table(1, &[(1, 100)]),
            table(-1, &[]),
            table(2, &[(2, 200), (3, 100)]),
            table(2, &[(1, i64::MAX), (2, 100)]),
            r#"{"metadata":{}}"#.to_owned(),
            "no json".to_owned(),
        ] {
            assert_eq!(of(&text), text);
        }
    }
}
