//! No row lost: a change is repeated until the catalog has said yes or no.
//!
//! An engine deletes the data files it has written on any answer to a commit but a success. If the catalog had committed
//! and only its answer was lost, the table is broken for good. So every change carries one idempotency key and is repeated
//! with it; and where that is not enough, the tables are read back and asked for our snapshots.

use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use reqwest::Method;
use tokio::time::{Instant, sleep, timeout};
use uuid::Uuid;

use super::answers::found_done;
use super::commits::{self, Expected, Verdict};
use super::effects::Reading;
use super::routes::Route;
use super::upstream::{Answer, Call, CatalogError, Upstream};

const PAUSE_FIRST: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// A change on its way.
pub(super) struct Change {
    pub(super) route: Route,
    /// Creates a table only as a draft, which the completing commit makes real.
    pub(super) staged: bool,
    call: Call,
    expected: Vec<Expected>,
}

impl Change {
    /// `path` is path and query on the wire, `reading` what the body says.
    pub(super) fn new(
        route: Route,
        method: Method,
        prefix: &str,
        path: &str,
        reading: &Reading,
        body: Bytes,
    ) -> Self {
        let staged = reading.staged;
        // Lakekeeper 0.13.3 answers the replay of a staged create with 500 for ever; staging twice does no harm.
        let idempotency_key = (!staged).then(Uuid::now_v7);
        let expect = |(table, snapshots): &(_, Vec<i64>)| Expected::of(prefix, table, snapshots.clone());
        let expected = reading.added.iter().map(expect).collect();
        let call = Call { body, idempotency_key, ..Call::new(method, path) };
        Self { route, staged, call, expected }
    }

    /// The tables it changes, for the log.
    pub(super) fn tables(&self) -> Vec<&str> {
        self.expected.iter().map(|table| table.path.as_str()).collect()
    }
}

/// Why there is no answer to a change.
#[derive(Debug)]
pub(super) enum Unsettled {
    /// The catalog has certainly not made it.
    NotMade(CatalogError),
    /// Nobody can tell.
    Unknown,
}

/// Sends the change until its outcome is known or its time is over. Must run to its end whoever waits for it.
pub(super) async fn settle(upstream: &Upstream, change: &Change) -> Result<Answer, Unsettled> {
    let settings = upstream.settings();
    let started = Instant::now();
    let until = started + Duration::from_millis(settings.settle_ms_max);
    let attempt_max = Duration::from_millis(settings.attempt_ms_max);
    let (mut attempt, mut pause) = (attempt_max / 4, PAUSE_FIRST);
    let mut perhaps_made = false;
    loop {
        let deadline = (Instant::now() + attempt).min(until);
        let last = match upstream.call(&change.call, deadline).await {
            Ok(answer) if is_settled(&answer) => {
                return conclude(upstream, change, answer, perhaps_made).await;
            }
            Ok(answer) => {
                tracing::warn!(status = answer.status.as_u16(), route = ?change.route, "change unsettled");
                perhaps_made = true;
                CatalogError::unavailable("it answers changes with 5xx")
            }
            Err(error) => {
                tracing::warn!(error = %error, route = ?change.route, "change unsettled");
                perhaps_made |= error.may_have_reached();
                let refused = matches!(error, CatalogError::LoginRefused { .. });
                let waited = started.elapsed() > Duration::from_millis(settings.read_ms_max);
                if !perhaps_made && (refused || waited) {
                    return Err(Unsettled::NotMade(error));
                }
                error
            }
        };
        if Instant::now() + pause >= until {
            return match (perhaps_made, read_back(upstream, change).await) {
                (_, Verdict::AllThere(loaded)) => Ok(found_done(change.route, &loaded)),
                (false, _) => Err(Unsettled::NotMade(last)),
                // Not there yet: what was sent may still be made.
                (true, _) => Err(Unsettled::Unknown),
            };
        }
        sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MAX);
        attempt = (attempt * 2).min(attempt_max);
    }
}

/// 2xx and 4xx are an outcome; so is 501, which says that the catalog has no such thing. No outcome is the 409 by which a
/// catalog says that an earlier attempt with this key is still under way (`request_in_progress` in the Iceberg REST API's
/// text on idempotency keys, apache/iceberg#14196; Lakekeeper sends it when two attempts meet): that one may yet succeed.
fn is_settled(answer: &Answer) -> bool {
    match answer.status {
        StatusCode::REQUEST_TIMEOUT => false,
        StatusCode::NOT_IMPLEMENTED => true,
        StatusCode::CONFLICT => !tells_of_progress(&answer.body),
        status => status.as_u16() < 500,
    }
}

fn tells_of_progress(body: &[u8]) -> bool {
    let letters: String = String::from_utf8_lossy(body).chars().filter(char::is_ascii_alphabetic).collect();
    letters.to_ascii_lowercase().contains("requestinprogress")
}

/// Whether a refusal is about an earlier attempt of ours that had succeeded. A conflict is looked into even at the first
/// attempt: the engine itself repeats commits, and that repetition comes with another key.
async fn conclude(
    upstream: &Upstream,
    change: &Change,
    answer: Answer,
    perhaps_made: bool,
) -> Result<Answer, Unsettled> {
    if perhaps_made && change.call.method == Method::DELETE && answer.status == StatusCode::NOT_FOUND {
        return Ok(Answer::new(StatusCode::NO_CONTENT, Bytes::new()));
    }
    let doubtful = answer.status == StatusCode::CONFLICT || (perhaps_made && answer.status.is_client_error());
    if !doubtful {
        return Ok(answer);
    }
    if change.expected.iter().all(|table| table.snapshots.is_empty()) {
        // "It is there already", or "it is gone", may be about the attempt whose answer was lost, and nothing can be looked for.
        let about_us = [StatusCode::CONFLICT, StatusCode::NOT_FOUND].contains(&answer.status);
        return if perhaps_made && about_us && !change.staged { Err(Unsettled::Unknown) } else { Ok(answer) };
    }
    match read_back(upstream, change).await {
        Verdict::AllThere(loaded) => Ok(found_done(change.route, &loaded)),
        Verdict::SomeThere => Err(Unsettled::Unknown),
        Verdict::Unreadable if perhaps_made => Err(Unsettled::Unknown),
        Verdict::NoneThere | Verdict::Unreadable => Ok(answer),
    }
}

/// Looks for the change's snapshots in the tables it was meant for. All of them together get the time of one read.
async fn read_back(upstream: &Upstream, change: &Change) -> Verdict {
    let time_max = Duration::from_millis(upstream.settings().read_ms_max);
    timeout(time_max, look(upstream, change)).await.unwrap_or(Verdict::Unreadable)
}

async fn look(upstream: &Upstream, change: &Change) -> Verdict {
    let mut found = Vec::new();
    for table in change.expected.iter().filter(|table| !table.snapshots.is_empty()) {
        let answer = match upstream.read(&table.path).await {
            Ok(answer) => answer,
            Err(error) => {
                tracing::warn!(error = %error, "table could not be read back");
                return Verdict::Unreadable;
            }
        };
        found.push(commits::look_for(&table.snapshots, answer));
    }
    commits::verdict(found)
}

#[cfg(test)]
mod tests {
    use super::super::effects;
    use super::*;

    #[test]
    fn only_a_definite_answer_settles_a_change() {
        let settled = |status: u16, body: &'static str| {
            is_settled(&Answer::new(StatusCode::from_u16(status).unwrap(), body))
        };
        for status in [200, 204, 400, 403, 404, 409, 422, 429, 501] {
            assert!(settled(status, ""), "{status}");
        }
        for status in [408, 500, 502, 503, 504, 507, 599] {
            assert!(!settled(status, ""), "{status}");
        }
        for kind in ["request_in_progress", "RequestInProgress", "Request in progress"] {
            let body = format!(r#"{{"error":{{"type":"{kind}","code":409}}}}"#);
            assert!(!settled(409, body.leak()), "{kind}");
        }
    }

    #[test]
    fn a_change_keeps_its_key_and_a_staged_create_has_none() {
        let change = |body: &'static str| {
            let body = Bytes::from(body);
            let reading = effects::read(Route::CreateTable, &["namespaces", "n", "tables"], &body).unwrap();
            Change::new(Route::CreateTable, Method::POST, "p", "/v1/p/namespaces/n/tables", &reading, body)
        };
        let plain = change(r#"{"name":"t"}"#);
        assert_eq!(plain.call.idempotency_key.map(|key| key.get_version_num()), Some(7));
        let staged = change(r#"{"name":"t","stage-create":true}"#);
        assert!(staged.staged && staged.call.idempotency_key.is_none());
    }
}
