//! The real catalog: every call to it has a deadline, carries our own login and follows no redirect.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::HeaderValue;
use moka::future::Cache;
use reqwest::{Client, Method, Response, StatusCode, Url, header, redirect};
use serde::Deserialize;
use tokio::time::{Instant, timeout_at};
use uuid::Uuid;

use super::login::{Login, Token};
use super::settings::{Faults, Settings};

const CONNECT_TIME_MAX: Duration = Duration::from_secs(2);
const ANSWER_BYTES_MAX: usize = 64 << 20;
const PREFIXES_MAX: u64 = 10_000;
/// A warehouse that is dropped and made anew gets another prefix; it is noticed after so long.
const PREFIX_TIME_MAX: Duration = Duration::from_mins(5);

/// What can go wrong with the catalog. Its text is for the log; workers get sentences of the door's own.
#[derive(Debug, Clone, thiserror::Error)]
pub enum CatalogError {
    /// There is no warehouse of that name, or we may not see it.
    #[error("the catalog has no warehouse of that name")]
    UnknownWarehouse,
    /// The catalog, or the identity provider before it, does not answer or is in trouble.
    #[error("the catalog is not available: {reason}")]
    Unavailable {
        /// What was observed.
        reason: &'static str,
        /// Whether the catalog may have seen the request, so that a change may have been made.
        reached: bool,
        /// The transport's own words, without the address.
        #[source]
        source: Option<Arc<reqwest::Error>>,
    },
    /// The catalog or its identity provider does not accept our credentials.
    #[error("the catalog refuses our login: {reason}")]
    LoginRefused {
        /// Who refused what.
        reason: &'static str,
    },
    /// The catalog answered, but not as the interface says, or not within our bounds.
    #[error("the catalog's answer is of no use: {reason}")]
    Unusable {
        /// What is wrong with it.
        reason: &'static str,
    },
}

impl CatalogError {
    pub(super) fn unavailable(reason: &'static str) -> Self {
        Self::Unavailable { reason, reached: false, source: None }
    }

    /// Whether a change may have been made although this came back.
    pub(super) fn may_have_reached(&self) -> bool {
        matches!(self, Self::Unavailable { reached: true, .. } | Self::Unusable { .. })
    }

    /// The same, about a request that was not meant for the catalog.
    pub(super) fn not_reached(self) -> Self {
        match self {
            Self::Unavailable { reason, source, .. } => Self::Unavailable { reason, reached: false, source },
            other => other,
        }
    }
}

/// One request to the catalog.
#[derive(Debug, Clone)]
pub(super) struct Call {
    pub(super) method: Method,
    /// Path and query below the base, as they stand on the wire.
    pub(super) path: String,
    pub(super) body: Bytes,
    /// Lets the catalog recognise a repetition.
    pub(super) idempotency_key: Option<Uuid>,
    /// Of an answer that we have: the same one comes as 304 without a body.
    pub(super) known: Option<HeaderValue>,
}

impl Call {
    pub(super) fn new(method: Method, path: impl Into<String>) -> Self {
        Self { method, path: path.into(), body: Bytes::new(), idempotency_key: None, known: None }
    }

    pub(super) fn get(path: impl Into<String>) -> Self {
        Self::new(Method::GET, path)
    }
}

/// What the catalog said; never 401.
#[derive(Debug, Clone)]
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) body: Bytes,
    /// Its `ETag`, where the catalog gives one.
    pub(super) tag: Option<HeaderValue>,
}

impl Answer {
    /// Without a tag.
    pub(super) fn new(status: StatusCode, body: impl Into<Bytes>) -> Self {
        Self { status, body: body.into(), tag: None }
    }
}

/// The real catalog. One per server: it holds the login and the connections.
pub struct Upstream {
    settings: Settings,
    client: Client,
    login: Option<Arc<Login>>,
    prefixes: Cache<String, Arc<str>>,
}

impl Upstream {
    /// Nothing is asked yet: a catalog that is down does not keep the server from starting.
    pub fn new(settings: Settings) -> Result<Self, Faults> {
        settings.validate()?;
        let client = Client::builder()
            .connect_timeout(CONNECT_TIME_MAX)
            .redirect(redirect::Policy::none())
            .no_proxy()
            .tcp_nodelay(true)
            .user_agent(concat!("duck-server/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|_| Faults(vec!["this system has no usable TLS roots for the catalog's client"]))?;
        let login = match (&settings.oauth2_uri, &settings.client_id, &settings.client_secret) {
            (Some(uri), Some(id), Some(secret)) => Some(Arc::new(Login::new(
                client.clone(),
                uri,
                id,
                secret.reveal(),
                settings.scope.as_deref(),
            ))),
            _ => None,
        };
        let prefixes = Cache::builder().max_capacity(PREFIXES_MAX).time_to_live(PREFIX_TIME_MAX).build();
        Ok(Self { settings, client, login, prefixes })
    }

    /// The settings it was made from.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The path segment under which the catalog serves this warehouse. Remembered for five minutes.
    pub async fn prefix_of(&self, warehouse: &str) -> Result<Arc<str>, CatalogError> {
        self.prefixes
            .try_get_with_by_ref(warehouse, self.ask_prefix(warehouse))
            .await
            .map_err(|error| CatalogError::clone(&error))
    }

    /// Whether the catalog answers and accepts our login.
    pub async fn probe(&self) -> Result<(), CatalogError> {
        let answer = self.read("/v1/config").await?;
        match answer.status {
            // Without a warehouse some catalogs answer 400 or 404: alive all the same.
            StatusCode::FORBIDDEN => Err(CatalogError::LoginRefused { reason: "403 from the catalog" }),
            status if status.is_server_error() => Err(CatalogError::unavailable("5xx from the catalog")),
            _ => Ok(()),
        }
    }

    async fn ask_prefix(&self, warehouse: &str) -> Result<Arc<str>, CatalogError> {
        #[derive(Default, Deserialize)]
        struct Part {
            prefix: Option<String>,
        }
        #[derive(Deserialize)]
        struct Config {
            #[serde(default)]
            defaults: Part,
            #[serde(default)]
            overrides: Part,
        }
        let answer = self.read(&format!("/v1/config?warehouse={}", encode(warehouse))).await?;
        let config: Config = parse(&answer, "the configuration is not what the interface says")?;
        let prefix = config
            .overrides
            .prefix
            .or(config.defaults.prefix)
            .ok_or(CatalogError::Unusable { reason: "the warehouse has no prefix" })?;
        if !is_plain_segment(&prefix) {
            return Err(CatalogError::Unusable { reason: "the warehouse's prefix is not one plain segment" });
        }
        Ok(prefix.into())
    }

    /// GET below the base, within the time of a read.
    pub(super) async fn read(&self, path: &str) -> Result<Answer, CatalogError> {
        self.call(&Call::get(path), Instant::now() + Duration::from_millis(self.settings.read_ms_max)).await
    }

    /// A worker's GET or HEAD, within the time of a read. What is known by its tag need not come again.
    pub(super) async fn pass_read(
        &self,
        method: Method,
        path: &str,
        known: Option<&HeaderValue>,
    ) -> Result<Answer, CatalogError> {
        let deadline = Instant::now() + Duration::from_millis(self.settings.read_ms_max);
        self.call(&Call { known: known.cloned(), ..Call::new(method, path) }, deadline).await
    }

    /// GET of an absolute address of the catalog's (its management API), within the time of a read.
    pub(super) async fn read_at(&self, base: &str, path: &str) -> Result<Answer, CatalogError> {
        let deadline = Instant::now() + Duration::from_millis(self.settings.read_ms_max);
        self.call_at(base, &Call::get(path), deadline).await
    }

    /// One call; a login that the catalog refuses is renewed and the call repeated, once.
    pub(super) async fn call(&self, call: &Call, deadline: Instant) -> Result<Answer, CatalogError> {
        self.call_at(self.settings.base(), call, deadline).await
    }

    async fn call_at(&self, base: &str, call: &Call, deadline: Instant) -> Result<Answer, CatalogError> {
        let late = |_| CatalogError::unavailable("no login in time");
        let Some(login) = &self.login else {
            let answer = self.send(base, call, None, deadline).await?;
            return admitted(answer)
                .ok_or(CatalogError::LoginRefused { reason: "it wants one, we have none" });
        };
        let token = timeout_at(deadline, login.token()).await.map_err(late)??;
        if let Some(answer) = admitted(self.send(base, call, Some(&token), deadline).await?) {
            return Ok(answer);
        }
        let token = timeout_at(deadline, login.token_instead_of(&token)).await.map_err(late)??;
        admitted(self.send(base, call, Some(&token), deadline).await?)
            .ok_or(CatalogError::LoginRefused { reason: "a renewed token was refused too" })
    }

    async fn send(
        &self,
        base: &str,
        call: &Call,
        token: Option<&Token>,
        deadline: Instant,
    ) -> Result<Answer, CatalogError> {
        let url = exact(base, &call.path)?;
        let mut request = self.client.request(call.method.clone(), url);
        if let Some(token) = token {
            request = request.bearer_auth(token.as_str());
        }
        if let Some(key) = &call.idempotency_key {
            request = request.header("idempotency-key", key.to_string());
        }
        if let Some(tag) = &call.known {
            request = request.header(header::IF_NONE_MATCH, tag);
        }
        if !call.body.is_empty() {
            request = request.header(header::CONTENT_TYPE, "application/json").body(call.body.clone());
        }
        let exchange = async {
            let response = request.send().await.map_err(failed)?;
            let status = response.status();
            let tag = response.headers().get(header::ETAG).cloned();
            let body = read_bounded(response, ANSWER_BYTES_MAX).await?;
            let body = if status.is_success() { body } else { without_login(body, token) };
            Ok(Answer { status, body, tag })
        };
        timeout_at(deadline, exchange).await.unwrap_or(Err(CatalogError::Unavailable {
            reason: "no answer in time",
            reached: true,
            source: None,
        }))
    }
}

/// What a catalog says of a failure, without the login that it was shown: workers are told the rest.
fn without_login(body: Bytes, token: Option<&Token>) -> Bytes {
    match (token, std::str::from_utf8(&body)) {
        (Some(token), Ok(text)) if text.contains(token.as_str()) => {
            text.replace(token.as_str(), "<token>").into()
        }
        _ => body,
    }
}

/// 401, and 419 which some catalogs use for an expired token, are about our login, never about the worker's request.
fn admitted(answer: Answer) -> Option<Answer> {
    let refused = matches!(answer.status.as_u16(), 401 | 407 | 419);
    (!refused).then_some(answer)
}

fn failed(error: reqwest::Error) -> CatalogError {
    CatalogError::Unavailable {
        reason: "the connection failed",
        reached: !(error.is_connect() || error.is_builder()),
        source: Some(Arc::new(error.without_url())),
    }
}

/// The URL, provided that the parser leaves the path as it is: it would fold `%2e%2e`.
fn exact(base: &str, path: &str) -> Result<Url, CatalogError> {
    let whole = format!("{base}{path}");
    let url = Url::parse(&whole).ok().filter(|url| {
        let spelled = whole.split_once("://").and_then(|(_, rest)| rest.find('/').map(|at| &rest[at..]));
        let kept =
            url.query().map_or_else(|| url.path().to_owned(), |query| format!("{}?{query}", url.path()));
        spelled == Some(kept.as_str())
    });
    // Nothing was sent.
    url.ok_or(CatalogError::unavailable("the path would not reach it as written"))
}

/// The whole body, or an error as soon as it is longer than `bytes_max`.
pub(super) async fn read_bounded(mut response: Response, bytes_max: usize) -> Result<Bytes, CatalogError> {
    let mut body = BytesMut::new();
    while let Some(chunk) = response.chunk().await.map_err(failed)? {
        if body.len() + chunk.len() > bytes_max {
            return Err(CatalogError::Unusable { reason: "it is too long" });
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body.freeze())
}

/// The answer to a read of ours, typed.
pub(super) fn parse<'a, T: Deserialize<'a>>(
    answer: &'a Answer,
    reason: &'static str,
) -> Result<T, CatalogError> {
    match answer.status {
        StatusCode::NOT_FOUND => Err(CatalogError::UnknownWarehouse),
        StatusCode::FORBIDDEN => Err(CatalogError::LoginRefused { reason: "403 from the catalog" }),
        status if status.is_server_error() => Err(CatalogError::unavailable("5xx from the catalog")),
        status if status.is_success() => {
            serde_json::from_slice(&answer.body).map_err(|_| CatalogError::Unusable { reason })
        }
        _ => Err(CatalogError::Unusable { reason: "neither a success nor a known error" }),
    }
}

/// Percent-encodes all but RFC 3986's unreserved characters.
pub(super) fn encode(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.extend(['%', hex(byte >> 4), hex(byte & 15)]);
        }
    }
    encoded
}

fn hex(nibble: u8) -> char {
    char::from_digit(nibble.into(), 16).unwrap_or('0').to_ascii_uppercase()
}

fn is_plain_segment(text: &str) -> bool {
    !text.is_empty() && text != "." && text != ".." && encode(text) == text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_sent_as_written_or_not_at_all() {
        assert!(exact("http://h:1/catalog", "/v1/p/namespaces/a%1Fb/tables/t?x=%20").is_ok());
        assert!(exact("http://h:1/catalog", "/v1/p/%2e%2e/q").is_err());
        assert!(exact("http://h:1/catalog", "/v1/p/../q").is_err());
        assert!(exact("http://h:1/catalog", "/v1/p/a b").is_err());
        assert!(exact("http://h:1", "/v1/p#f").is_err());
    }

    #[test]
    fn names_are_encoded() {
        assert_eq!(encode("a\u{1f}b/ü"), "a%1Fb%2F%C3%BC");
        assert!(is_plain_segment("0198c2b4-aaaa") && !is_plain_segment("..") && !is_plain_segment("a/b"));
    }
}
