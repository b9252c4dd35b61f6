//! What stands between a server and its catalog, and loses answers.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::{CONNECTION, CONTENT_LENGTH, HOST, TRANSFER_ENCODING};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::sync::watch;

/// What becomes of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// The connection is cut.
    Cut,
    /// It comes after the server has given up waiting.
    Late,
    /// It comes as 500.
    Error,
}

/// The proxy. Its tasks end with the test's runtime.
pub struct Lossy {
    /// The base of the catalog as seen through it.
    pub url: String,
    state: Arc<State>,
}

struct State {
    upstream: String,
    /// What the catalog calls otherwise than the server, in paths.
    renames: Vec<(String, String)>,
    http: reqwest::Client,
    plan: Mutex<Plan>,
    held: watch::Sender<bool>,
    answers_held: watch::Sender<bool>,
    waiting: watch::Sender<usize>,
}

#[derive(Default)]
struct Plan {
    /// How, and how many answers to each change.
    loss: Option<(Loss, u32)>,
    /// Idempotency keys do not reach the catalog.
    forgetful: bool,
    /// After the first lost answer nothing gets through any more.
    then_dead: bool,
    dead: bool,
    /// Answers lost so far, by change.
    lost: HashMap<String, u32>,
}

impl Lossy {
    /// Stands before this catalog, and loses nothing yet.
    pub async fn before(upstream: &str) -> Lossy {
        Lossy::renaming(upstream, Vec::new()).await
    }

    /// The same before a catalog that has other names for some things: ours and its, in paths.
    pub async fn renaming(upstream: &str, renames: Vec<(String, String)>) -> Lossy {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/catalog", listener.local_addr().unwrap());
        let state = Arc::new(State {
            upstream: upstream.trim_end_matches("/catalog").to_owned(),
            renames,
            http: reqwest::Client::builder().no_proxy().build().unwrap(),
            plan: Mutex::default(),
            held: watch::Sender::new(false),
            answers_held: watch::Sender::new(false),
            waiting: watch::Sender::new(0),
        });
        tokio::spawn(listen(listener, state.clone()));
        Lossy { url, state }
    }

    /// From now on so many answers to each change are lost.
    pub fn lose(&self, loss: Loss, times: u32) {
        *self.state.plan() = Plan { loss: Some((loss, times)), ..Plan::default() };
    }

    /// The same, before a catalog that knows no idempotency keys.
    pub fn lose_without_keys(&self, loss: Loss, times: u32) {
        *self.state.plan() = Plan { loss: Some((loss, times)), forgetful: true, ..Plan::default() };
    }

    /// The next change reaches the catalog; from its answer on, nothing gets through.
    pub fn die_at_next_change(&self) {
        *self.state.plan() = Plan { loss: Some((Loss::Cut, 1)), then_dead: true, ..Plan::default() };
    }

    /// Loses nothing any more.
    pub fn heal(&self) {
        *self.state.plan() = Plan::default();
    }

    /// How many answers were lost since the last change of plan.
    pub fn lost(&self) -> u32 {
        self.state.plan().lost.values().sum()
    }

    /// Keeps changes from reaching the catalog until [`Lossy::release`].
    pub fn hold(&self) {
        self.state.held.send_replace(true);
    }

    /// Lets changes reach the catalog, and keeps its answers until [`Lossy::release`].
    pub fn hold_answers(&self) {
        self.state.answers_held.send_replace(true);
    }

    /// Waits until a change, or the answer to one, is held.
    pub async fn holding(&self) {
        let mut waiting = self.state.waiting.subscribe();
        let held = waiting.wait_for(|count| *count > 0);
        tokio::time::timeout(std::time::Duration::from_secs(20), held).await.expect("a change").unwrap();
    }

    /// Lets changes go on.
    pub fn release(&self) {
        self.state.held.send_replace(false);
        self.state.answers_held.send_replace(false);
    }
}

impl State {
    fn plan(&self) -> MutexGuard<'_, Plan> {
        self.plan.lock().unwrap()
    }
}

async fn listen(listener: TcpListener, state: Arc<State>) {
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let state = state.clone();
        let answer = service_fn(move |request| answer(state.clone(), request));
        tokio::spawn(
            hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), answer),
        );
    }
}

/// An error cuts the connection.
async fn answer(state: Arc<State>, request: Request<Incoming>) -> io::Result<Response<Full<Bytes>>> {
    let cut = || Err(io::Error::other("cut"));
    let change = is_change(&request);
    let name = format!("{} {}", request.method(), request.uri().path());
    if state.plan().dead {
        return cut();
    }
    // A task of its own: what was sent arrives, though the sender may have given up.
    let asked = state.clone();
    let answered = tokio::spawn(async move {
        if change {
            asked.waiting.send_modify(|count| *count += 1);
            asked.held.subscribe().wait_for(|held| !held).await.unwrap();
            asked.waiting.send_modify(|count| *count -= 1);
        }
        let answer = forward(&asked, request).await;
        if change && *asked.answers_held.borrow() {
            asked.waiting.send_modify(|count| *count += 1);
            asked.answers_held.subscribe().wait_for(|held| !held).await.unwrap();
            asked.waiting.send_modify(|count| *count -= 1);
        }
        answer
    });
    let answer = answered.await.unwrap()?;
    let loss = if change { state.plan().loses(name) } else { None };
    match loss {
        None => Ok(answer),
        Some(Loss::Cut) => cut(),
        // Until the server hangs up, which drops this.
        Some(Loss::Late) => std::future::pending().await,
        Some(Loss::Error) => {
            let body = r#"{"error":{"message":"no","type":"InternalServerError","code":500}}"#;
            let mut answer = Response::new(Full::from(body));
            *answer.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
            Ok(answer)
        }
    }
}

impl Plan {
    fn loses(&mut self, change: String) -> Option<Loss> {
        let (loss, times) = self.loss?;
        let count = self.lost.entry(change).or_default();
        if *count == times {
            return None;
        }
        *count += 1;
        self.dead = self.then_dead;
        Some(loss)
    }
}

fn is_change(request: &Request<Incoming>) -> bool {
    request.method() != Method::GET
        && request.method() != Method::HEAD
        && !request.uri().path().ends_with("/oauth/tokens")
}

async fn forward(state: &State, request: Request<Incoming>) -> io::Result<Response<Full<Bytes>>> {
    let (head, body) = request.into_parts();
    let mut path = head.uri.path_and_query().unwrap().to_string();
    for (ours, its) in &state.renames {
        path = path.replace(ours, its);
    }
    let mut headers = head.headers;
    for name in [HOST, CONTENT_LENGTH, CONNECTION, TRANSFER_ENCODING] {
        headers.remove(name);
    }
    if state.plan().forgetful {
        headers.remove("idempotency-key");
    }
    let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
    let sent =
        state.http.request(head.method, format!("{}{path}", state.upstream)).headers(headers).body(body);
    let answer = sent.send().await.map_err(io::Error::other)?;
    let mut passed = Response::new(Full::default());
    *passed.status_mut() = answer.status();
    for (name, value) in answer.headers() {
        if ![CONTENT_LENGTH, CONNECTION, TRANSFER_ENCODING].contains(name) {
            passed.headers_mut().append(name.clone(), value.clone());
        }
    }
    *passed.body_mut() = Full::new(answer.bytes().await.map_err(io::Error::other)?);
    Ok(passed)
}
