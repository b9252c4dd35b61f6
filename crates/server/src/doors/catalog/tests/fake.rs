//! A catalog that does as it is told.

use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpSocket};

/// A request as it arrived.
#[derive(Debug, Clone)]
pub(in super::super) struct Seen {
    pub(in super::super) method: String,
    /// Path and query, from the origin.
    pub(in super::super) path: String,
    pub(in super::super) key: Option<String>,
    pub(in super::super) bearer: Option<String>,
    /// The tag of the answer that it has.
    pub(in super::super) known: Option<String>,
    /// All of its headers, as text.
    pub(in super::super) headers: String,
    pub(in super::super) body: String,
}

impl Seen {
    pub(in super::super) fn is(&self, method: &str, path: &str) -> bool {
        self.method == method && self.path.split('?').next().is_some_and(|own| own.ends_with(path))
    }
}

/// What to do with it.
pub(in super::super) enum Act {
    Say(u16, String),
    Late(Duration, u16, String),
    /// 200 with this `ETag`, or 304 to whoever knows it.
    Tagged(&'static str, String),
    /// Close the connection without a word.
    Cut,
}

pub(in super::super) fn say(status: u16, body: impl Into<String>) -> Act {
    Act::Say(status, body.into())
}

pub(in super::super) struct Fake {
    pub(in super::super) origin: String,
    seen: Arc<Mutex<Vec<Seen>>>,
}

impl Fake {
    /// The script gets a request and how many with the same method and path came before. `/v1/config` is answered already.
    pub(in super::super) async fn start(
        script: impl Fn(&Seen, usize) -> Act + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let origin = format!("http://{}", listener.local_addr().unwrap());
        let seen = Arc::<Mutex<Vec<Seen>>>::default();
        let (script, log) = (Arc::new(script), seen.clone());
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (script, log) = (script.clone(), log.clone());
                let service = service_fn(move |request| answer(request, script.clone(), log.clone()));
                tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
            }
        });
        Self { origin, seen }
    }

    /// What came for a path that a worker has asked for.
    pub(in super::super) fn seen(&self, method: &str, path: &str) -> Vec<Seen> {
        let path = &path.replacen("/v1/lake/", "/v1/p-a/", 1);
        self.seen.lock().unwrap().iter().filter(|seen| seen.is(method, path)).cloned().collect()
    }
}

/// An origin that refuses connections for as long as the socket is kept: bound, so that nobody else gets its port, and not listening.
pub(in super::super) fn nobody() -> (TcpSocket, String) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let origin = format!("http://{}", socket.local_addr().unwrap());
    (socket, origin)
}

async fn answer(
    request: Request<Incoming>,
    script: Arc<impl Fn(&Seen, usize) -> Act>,
    log: Arc<Mutex<Vec<Seen>>>,
) -> Result<Response<Full<Bytes>>, io::Error> {
    let header = |name: &str| request.headers().get(name).map(|value| value.to_str().unwrap().to_owned());
    let mut seen = Seen {
        method: request.method().to_string(),
        path: request.uri().to_string(),
        key: header("idempotency-key"),
        known: header("if-none-match"),
        bearer: header("authorization").and_then(|value| value.strip_prefix("Bearer ").map(str::to_owned)),
        headers: format!("{:?}", request.headers()),
        body: String::new(),
    };
    let body = request.into_body().collect().await.map_err(io::Error::other)?.to_bytes();
    seen.body = String::from_utf8_lossy(&body).into_owned();
    let before = {
        let mut log = log.lock().unwrap();
        let path = seen.path.split('?').next().unwrap();
        let before = log.iter().filter(|other| other.is(&seen.method, path)).count();
        log.push(seen.clone());
        before
    };
    let act = if seen.path.contains("/v1/config") { config(&seen.path) } else { script(&seen, before) };
    let (status, tag, body) = match act {
        Act::Say(status, body) => (status, None, body),
        Act::Late(delay, status, body) => {
            tokio::time::sleep(delay).await;
            (status, None, body)
        }
        Act::Tagged(tag, _) if seen.known.as_deref() == Some(tag) => (304, Some(tag), String::new()),
        Act::Tagged(tag, body) => (200, Some(tag), body),
        Act::Cut => return Err(io::Error::other("cut")),
    };
    let response = tag.into_iter().fold(Response::builder(), |response, tag| response.header("etag", tag));
    Ok(response.status(status).body(Full::new(body.into())).unwrap())
}

fn config(path: &str) -> Act {
    let prefix = match path.split_once("warehouse=").map(|(_, name)| name) {
        Some("w_a") => "p-a",
        Some("w_b") => "p-b",
        Some("w_uuid") => "0198c2b4-0000-7000-8000-000000000001",
        _ => return say(404, r#"{"error":{"message":"no","type":"NotFound","code":404}}"#),
    };
    say(
        200,
        format!(
            r#"{{"defaults":{{"prefix":"{prefix}","rest-page-size":"100"}},"overrides":{{"uri":"http://lakekeeper:8181/catalog","s3.endpoint":"http://r2"}}}}"#
        ),
    )
}
