//! One request of a worker, from its bearer to the answer.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use duck_contract::Role;
use duck_contract::query::ChangeKind;
use duck_contract::worker::CATALOG;
use http::{HeaderMap, Method, Request, StatusCode, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Body;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use super::answers;
use super::cache::{Key, Tables, Tagged};
use super::effects::{self, Loaded};
use super::guard::{self, Held, Way};
use super::reply::Reply;
use super::routes::{self, Asked, Route};
use super::settle::{Change, Unsettled, settle};
use super::upstream::Upstream;
use super::{Passes, Visitor};
use crate::doors::{Effect, Errand, Outcome, Table};

const REQUEST_BYTES_MAX: usize = 16 << 20;
const REQUEST_TIME_MAX: Duration = Duration::from_secs(30);
/// Changes under way, also those whose worker is gone.
const CHANGES_MAX: usize = 512;

/// All that the requests share.
pub(super) struct Door {
    passes: Passes,
    upstream: Arc<Upstream>,
    tables: Tables,
    slots: Arc<Semaphore>,
    /// Changes end when they are settled, not when somebody stops waiting.
    pub(super) changes: TaskTracker,
}

impl Door {
    pub(super) fn new(passes: Passes, upstream: Arc<Upstream>) -> Self {
        let slots = Arc::new(Semaphore::new(CHANGES_MAX));
        Self { passes, upstream, tables: Tables::new(), slots, changes: TaskTracker::new() }
    }

    /// Answers one request. There is no other outcome than an answer.
    pub(super) async fn answer<B>(&self, request: Request<B>) -> Reply
    where
        B: Body<Data = Bytes>,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        self.try_answer(request).await.unwrap_or_else(|refusal| refusal)
    }

    async fn try_answer<B>(&self, request: Request<B>) -> Result<Reply, Reply>
    where
        B: Body<Data = Bytes>,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let (head, body) = request.into_parts();
        let visitor =
            || self.visitor(&head.headers).ok_or_else(|| refused("no worker of ours", unknown_worker()));
        let (visitor, prefix, segments, rest) = match routes::asked(&head.method, &head.uri) {
            Ok(Asked::Config(warehouse)) => return config(warehouse.as_deref()),
            Ok(Asked::Below { prefix, segments, rest }) => (visitor()?, prefix, segments, rest),
            Err(reply) => return Err(visitor().err().unwrap_or_else(|| refused("no such route", reply))),
        };
        if prefix != CATALOG {
            tracing::warn!(warehouse = visitor.warehouse, "a worker asked for another warehouse's prefix");
            return Err(Reply::forbidden("this is not the warehouse that is attached"));
        }
        visitor.asked_catalog();
        // Which warehouse that is, no worker says.
        let prefix = self.upstream.prefix_of(&visitor.warehouse).await?;
        let path = format!("/v1/{prefix}{rest}");
        let route = routes::route(&head.method, &segments);
        let route = route.ok_or_else(|| refused("no such route", routes::not_served()))?;
        if !route.needs_writer() {
            let reply = self.read(&visitor, route, head.method, &path).await?;
            if let (Route::LoadTable, Some(table)) = (route, table_of(&segments)) {
                loaded(&visitor, &table, &reply);
            }
            return Ok(reply);
        }
        if visitor.role != Role::Writer {
            tracing::info!(warehouse = visitor.warehouse, ?route, "a reader asked for a change");
            return Err(Reply::forbidden("the warehouse is attached for reading only"));
        }
        let body = collect(body).await?;
        checked(&head.method, &body, &visitor)?;
        let reading = effects::read(route, &segments, &body)?;
        // Not before the body is here: it is the statement that runs now whose right is asked.
        let errand = visitor.errand().ok_or_else(nobody_asked)?;
        errand.allows(&reading.effects).map_err(|fault| {
            tracing::info!(warehouse = visitor.warehouse, ?route, refused = %fault, "change refused");
            Reply::forbidden(&fault.sentence)
        })?;
        let change = Change::new(route, head.method, &prefix, &path, &reading, body);
        self.change(visitor, errand, reading.effects, change).await
    }

    fn visitor(&self, headers: &HeaderMap) -> Option<Arc<Visitor>> {
        let (scheme, bearer) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| self.passes.by_bearer(bearer.trim()))?
    }

    async fn read(
        &self,
        visitor: &Visitor,
        route: Route,
        method: Method,
        path: &str,
    ) -> Result<Reply, Reply> {
        if (route, &method) != (Route::LoadTable, &Method::GET) {
            let answer = self.upstream.pass_read(method, path, None).await?;
            return answers::read(route, answer, &visitor.place);
        }
        let key = Key::new(visitor, path);
        let kept = self.tables.get(&key).await;
        let answer = self.upstream.pass_read(method, path, kept.as_ref().map(|kept| &kept.tag)).await?;
        if let (StatusCode::NOT_MODIFIED, Some(kept)) = (answer.status, kept) {
            return Ok(kept.reply);
        }
        let tag = answer.tag.clone();
        let reply = answers::read(route, answer, &visitor.place)?;
        if let Some(tag) = tag {
            self.tables.keep(key, Tagged { tag, reply: reply.clone() }).await;
        }
        Ok(reply)
    }

    async fn change(
        &self,
        visitor: Arc<Visitor>,
        errand: Arc<Errand>,
        effects: Vec<Effect>,
        change: Change,
    ) -> Result<Reply, Reply> {
        let slot = self.slots.clone().try_acquire_owned().map_err(|_| Reply::busy())?;
        let upstream = self.upstream.clone();
        // A draft is no change yet.
        let number =
            if change.staged { None } else { Some(errand.begins(effects.clone()).ok_or_else(nobody_asked)?) };
        // A task of its own: the worker may go away, the change must be settled all the same.
        let settled = self.changes.spawn(async move {
            let settled = settle(&upstream, &change).await;
            drop(slot);
            let time_max = Duration::from_millis(upstream.settings().read_ms_max);
            let conflict = timeout(time_max, conflict(&upstream, &settled, &change, &effects)).await;
            let (outcome, conflict) = (outcome(&settled), conflict.ok().flatten());
            let reply = reported(&visitor, &change, settled);
            if let (Route::CreateTable, Ok(reply)) = (change.route, &reply) {
                drafted(&errand, &effects, reply);
            }
            if let Some(number) = number {
                errand.ended(number, outcome, conflict);
            }
            reply
        });
        settled.await.unwrap_or_else(|_| Err(Reply::unknown_outcome()))
    }
}

/// The same for everybody, so that the template can ask, who has no key: the prefix and nothing else. What the catalog would add are its
/// own address, its token endpoint and the store's.
fn config(asked: Option<&str>) -> Result<Reply, Reply> {
    if asked != Some(CATALOG) {
        let message = "there is no such warehouse";
        let reply = Reply::error(StatusCode::NOT_FOUND, "NoSuchWarehouseException", message);
        return Err(refused("another warehouse", reply));
    }
    let config = serde_json::json!({ "defaults": {}, "overrides": { "prefix": CATALOG } });
    Ok(Reply { status: StatusCode::OK, body: config.to_string().into() })
}

type Settled = Result<super::upstream::Answer, Unsettled>;

fn outcome(settled: &Settled) -> Outcome {
    match settled {
        Ok(answer) if answer.status.is_success() => Outcome::Made,
        Ok(_) | Err(Unsettled::NotMade(_)) => Outcome::NotMade,
        Err(Unsettled::Unknown) => Outcome::Unknown,
    }
}

/// What was in the way of a commit, in a sentence for whoever sent the statement.
async fn conflict(
    upstream: &Upstream,
    settled: &Settled,
    change: &Change,
    effects: &[Effect],
) -> Option<String> {
    settled.as_ref().ok().filter(|answer| answer.status == StatusCode::CONFLICT)?;
    if !effects.iter().any(|effect| effect.kind == ChangeKind::Commit) {
        // Something of that name is there, or something is still in it.
        return None;
    }
    let shown = |id: Option<i64>| id.map_or_else(|| "no snapshot".to_owned(), |id| format!("snapshot {id}"));
    for (path, effect) in change.tables().iter().zip(effects) {
        let (Some(table), Ok(answer)) = (effect.table(), upstream.read(path).await) else { continue };
        let Some(loaded) = Loaded::of(&answer.body) else { continue };
        if loaded.current() != effect.base {
            let (table, base, now) = (table.dotted(), shown(effect.base), shown(loaded.current()));
            return Some(format!("{table} was at {base} when it was read, and is at {now} now."));
        }
    }
    let tables: Vec<String> = effects.iter().filter_map(Effect::table).map(|table| table.dotted()).collect();
    Some(format!("Somebody else changed {} at the same time.", tables.join(", ")))
}

fn table_of(segments: &[&str]) -> Option<Table> {
    match segments {
        ["namespaces", namespace, "tables", table] => {
            Some(Table { namespace: routes::levels(namespace), name: routes::name(table) })
        }
        _ => None,
    }
}

/// Writes down that the worker was given a table, for each of its statements.
fn loaded(visitor: &Visitor, table: &Table, reply: &Reply) {
    // Only who may write files has to know where.
    let loaded = if visitor.role == Role::Writer { Loaded::of(&reply.body) } else { None };
    let location = loaded.as_ref().and_then(Loaded::location);
    visitor.errands().iter().for_each(|errand| errand.loaded(table, location));
}

/// Files of a table that is being made may be written where the catalog has put it.
fn drafted(errand: &Errand, effects: &[Effect], reply: &Reply) {
    let Some(table) = effects.first().and_then(Effect::table) else { return };
    if let Some(location) = Loaded::of(&reply.body).as_ref().and_then(Loaded::location) {
        errand.drafted(&table, location);
    }
}

fn nobody_asked() -> Reply {
    Reply::forbidden("no statement is under way that could change anything")
}

fn reported(
    visitor: &Visitor,
    change: &Change,
    outcome: Result<super::upstream::Answer, Unsettled>,
) -> Result<Reply, Reply> {
    let (warehouse, route, tables) = (&visitor.warehouse, change.route, change.tables());
    match outcome {
        Ok(answer) => {
            let status = answer.status.as_u16();
            tracing::info!(warehouse, ?route, ?tables, status, "change settled");
            // A draft is no change yet: what is read of it can still be refused without harm.
            if change.staged {
                answers::read(route, answer, &visitor.place)
            } else {
                Ok(answers::changed(route, answer))
            }
        }
        Err(Unsettled::NotMade(error)) => {
            tracing::warn!(warehouse, ?route, ?tables, error = %error, "change not made");
            Err(error.into())
        }
        Err(Unsettled::Unknown) => {
            tracing::error!(warehouse, ?route, ?tables, "nobody knows whether the change was made");
            Err(Reply::unknown_outcome())
        }
    }
}

/// For the log: how an engine's attempts end here (docs/layers.md).
fn refused(reason: &str, reply: Reply) -> Reply {
    tracing::info!(reason, status = reply.status.as_u16(), "refused at the catalog door");
    reply
}

fn unknown_worker() -> Reply {
    Reply::error(StatusCode::UNAUTHORIZED, "NotAuthorizedException", "this bearer is not known here")
}

async fn collect<B>(body: B) -> Result<Bytes, Reply>
where
    B: Body<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    match timeout(REQUEST_TIME_MAX, Limited::new(body, REQUEST_BYTES_MAX).collect()).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            let message = "the request is longer than 16 MiB";
            Err(Reply::error(StatusCode::PAYLOAD_TOO_LARGE, "BadRequestException", message))
        }
        Ok(Err(_)) | Err(_) => Err(Reply::bad_request("the request did not arrive whole")),
    }
}

fn checked(method: &Method, body: &[u8], visitor: &Visitor) -> Result<(), Reply> {
    if method == Method::DELETE {
        let message = "a deletion has no body";
        return if body.is_empty() { Ok(()) } else { Err(Reply::bad_request(message)) };
    }
    guard::check(body, &visitor.place, Way::Sent).map_err(|held| {
        tracing::warn!(warehouse = visitor.warehouse, reason = %held, "change refused");
        match held {
            Held::Unreadable => Reply::bad_request(&held.to_string()),
            Held::Broken(sentence) => Reply::forbidden(&sentence),
        }
    })
}
