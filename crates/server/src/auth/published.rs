//! An issuer's published keys, fetched when [`Keys`] says so.
//!
//! One fetch at a time and for all who wait, in a task of its own: whoever goes away takes no fetch along. It has a deadline, a
//! bound on what it reads, and follows no redirection: what is fetched decides who is let in.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use duck_contract::Code;
use jsonwebtoken::errors::{Error, ErrorKind};
use jsonwebtoken::{Algorithm, DecodingKey};
use reqwest::{Client, StatusCode, Url, header, redirect};
use serde::Serialize;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use super::Refusal;
use super::jwks::{KeySet, Unusable};
use super::keys::{Been, Keys, Overall, Step, Times};
use super::settings::{Accepted, IssuerSettings};
use crate::fault::Fault;

const CONNECT_TIME_MAX: Duration = Duration::from_secs(2);
const DOCUMENT_BYTES_MAX: usize = 256 << 10;
/// Requests of one issuer that wait for its keys. They hold nothing but their connection.
const WAITING_MAX: usize = 256;
/// A fetch ends at its deadline; one that has not by then, and a bit, was lost with its task.
const MARGIN: Duration = Duration::from_secs(1);
/// Wait once for a set, look again, doubt a signature, and look again.
const STEPS_MAX: usize = 4;

/// Why a fetch brought nothing. For the log.
#[derive(Debug, thiserror::Error)]
enum Failed {
    #[error("no answer in time")]
    Late,
    #[error("the connection failed")]
    Connection(#[source] reqwest::Error),
    #[error("the answer is {0}, not 200")]
    Status(StatusCode),
    #[error("the answer is longer than {DOCUMENT_BYTES_MAX} bytes")]
    TooLong,
    #[error("the answer is of no use: {0}")]
    Unusable(Unusable),
}

/// The HTTP client of all issuers.
pub(super) fn client() -> Result<Client, reqwest::Error> {
    Client::builder()
        .connect_timeout(CONNECT_TIME_MAX)
        .redirect(redirect::Policy::none())
        .no_proxy()
        .pool_max_idle_per_host(0)
        .user_agent(concat!("duck-server/", env!("CARGO_PKG_VERSION")))
        .build()
}

/// How an issuer's keys are, for `GET /status`.
#[derive(Debug, Clone, Serialize)]
pub struct KeyGauges {
    /// Whose they are.
    pub issuer: String,
    /// Keys that can be used now.
    pub keys: usize,
    /// How old they are.
    pub age_s: Option<u64>,
    /// Fetches since the start, those that failed included.
    pub fetches: u64,
    /// Fetches that brought nothing.
    pub failures: u64,
}

/// One issuer's keys.
pub(super) struct Published {
    issuer: String,
    uri: Url,
    accepted: Vec<Accepted>,
    fetch_max: Duration,
    client: Client,
    keys: Mutex<Keys<Arc<KeySet>>>,
    overall: Arc<Mutex<Overall>>,
    /// Told when a fetch has ended.
    ended: watch::Sender<()>,
}

impl Published {
    pub(super) fn new(
        settings: &IssuerSettings,
        uri: Url,
        client: Client,
        overall: Arc<Mutex<Overall>>,
    ) -> Self {
        let fetch_max = Duration::from_millis(settings.fetch_ms_max);
        let times = Times {
            ttl: Duration::from_secs(settings.keys_ttl_s),
            age_max: Duration::from_secs(settings.keys_age_s_max),
            pause: Duration::from_secs(settings.refetch_pause_s),
            fetch_max: fetch_max + MARGIN,
        };
        Published {
            issuer: settings.issuer.clone(),
            uri,
            accepted: settings.accepted(),
            fetch_max,
            client,
            keys: Mutex::new(Keys::new(times)),
            overall,
            ended: watch::Sender::new(()),
        }
    }

    /// Checks a token with the key that it names, by `check`; at most one fetch is waited for.
    pub(super) async fn check<T>(
        self: &Arc<Self>,
        kid: Option<&str>,
        algorithm: Algorithm,
        check: impl Fn(&DecodingKey) -> Result<T, Error>,
    ) -> Result<T, Refusal> {
        let mut been = Been::default();
        for _ in 0..STEPS_MAX {
            match self.step(been, kid, algorithm) {
                Next::Use(set, serial) => {
                    let key = set.key(kid, algorithm).ok_or(Refusal::Invalid("no key fits"))?;
                    match check(key) {
                        // The key may have been replaced under its name.
                        Err(e) if matches!(e.kind(), ErrorKind::InvalidSignature) => {
                            been.doubted = Some(serial);
                        }
                        checked => return checked.map_err(Refusal::from),
                    }
                }
                Next::Wait(mut ended) => {
                    if self.ended.receiver_count() > WAITING_MAX {
                        return Err(Refusal::Unavailable("too many wait for the issuer's keys"));
                    }
                    let _ = timeout(self.fetch_max + MARGIN, ended.changed()).await;
                    been.waited = true;
                }
                Next::Refused(refusal) => return Err(refusal),
            }
        }
        Err(Refusal::Invalid("no key of the issuer checks it"))
    }

    fn step(self: &Arc<Self>, been: Been, kid: Option<&str>, algorithm: Algorithm) -> Next {
        let now = Instant::now();
        let mut keys = self.keys();
        let mut overall = self.overall.lock().unwrap_or_else(PoisonError::into_inner);
        match keys.want(now, &mut overall, been, |set| set.fit(kid, algorithm)) {
            Step::Use { renew } => {
                if renew {
                    self.fetch_beside(now);
                }
                match keys.held(now) {
                    Some(held) => Next::Use(held.set.clone(), held.serial),
                    None => Next::Refused(Refusal::Unavailable("the keys are too old")),
                }
            }
            Step::Fetch => {
                self.fetch_beside(now);
                Next::Wait(self.ended.subscribe())
            }
            Step::Join => Next::Wait(self.ended.subscribe()),
            Step::Refuse => {
                Next::Refused(Refusal::Invalid("no key of the issuer fits, or its signature does not hold"))
            }
            Step::Unavailable => Next::Refused(Refusal::Unavailable("the issuer's keys cannot be had")),
        }
    }

    fn fetch_beside(self: &Arc<Self>, asked_at: Instant) {
        let published = self.clone();
        tokio::spawn(async move {
            let brought = timeout(published.fetch_max, published.fetch()).await.unwrap_or(Err(Failed::Late));
            let issuer = &published.issuer;
            let brought = match brought {
                Ok(set) => {
                    tracing::info!(issuer, keys = set.len(), ignored = set.ignored, "keys fetched");
                    Some(Arc::new(set))
                }
                Err(e) => {
                    let fault = Fault::new(Code::AuthUnavailable, "").because(e);
                    tracing::warn!(issuer, cause = fault.chain(), "keys could not be fetched");
                    None
                }
            };
            // Both under the lock: whoever begins to wait after the end must not be woken by it.
            let mut keys = published.keys();
            keys.ended(Instant::now(), asked_at, brought);
            published.ended.send_replace(());
        });
    }

    async fn fetch(&self) -> Result<KeySet, Failed> {
        let connection = |e: reqwest::Error| Failed::Connection(e.without_url());
        let request = self
            .client
            .get(self.uri.clone())
            .header(header::ACCEPT, "application/jwk-set+json, application/json");
        let mut answer = request.send().await.map_err(connection)?;
        if answer.status() != StatusCode::OK {
            return Err(Failed::Status(answer.status()));
        }
        let mut document = Vec::new();
        while let Some(piece) = answer.chunk().await.map_err(connection)? {
            if document.len() + piece.len() > DOCUMENT_BYTES_MAX {
                return Err(Failed::TooLong);
            }
            document.extend_from_slice(&piece);
        }
        KeySet::read(&document, &self.accepted).map_err(Failed::Unusable)
    }

    pub(super) fn gauges(&self) -> KeyGauges {
        let now = Instant::now();
        let keys = self.keys();
        let held = keys.held(now);
        KeyGauges {
            issuer: self.issuer.clone(),
            keys: held.map_or(0, |held| held.set.len()),
            age_s: held.map(|held| now.saturating_duration_since(held.asked_at).as_secs()),
            fetches: keys.fetches,
            failures: keys.failures,
        }
    }

    fn keys(&self) -> MutexGuard<'_, Keys<Arc<KeySet>>> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What comes next, with what it takes.
enum Next {
    Use(Arc<KeySet>, u64),
    Wait(watch::Receiver<()>),
    Refused(Refusal),
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::future::join_all;

    #[tokio::test]
    async fn no_more_wait_for_an_issuer_than_the_bound_and_nobody_for_longer_than_a_fetch() {
        // It takes connections, and answers none.
        let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let uri = format!("http://{}/", silent.local_addr().unwrap()).parse().unwrap();
        let settings = IssuerSettings { fetch_ms_max: 300, ..IssuerSettings::default() };
        let published = Arc::new(Published::new(&settings, uri, client().unwrap(), Arc::default()));
        let began = Instant::now();
        let all = (0..WAITING_MAX + 40).map(|_| published.check(Some("k"), Algorithm::ES256, |_| Ok(())));
        let refused = join_all(all).await;
        assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
        let with = |text: &str| {
            refused
                .iter()
                .filter(|r| matches!(r, Err(Refusal::Unavailable(why)) if why.contains(text)))
                .count()
        };
        assert_eq!((with("too many wait"), with("cannot be had")), (40, WAITING_MAX));
        let gauges = published.gauges();
        assert_eq!((gauges.fetches, gauges.failures, gauges.keys, gauges.age_s), (1, 1, 0, None));
    }
}
