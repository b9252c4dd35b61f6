//! One token (`OAuth2` client credentials) for all calls to the catalog.
//!
//! Renewed well before its end and beside the calls that still use it; while the identity provider is down the old token
//! serves until it really expires. Never shown to a worker, never logged.

use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use reqwest::{Client, StatusCode};
use serde::Deserialize;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};

use super::upstream::{CatalogError, read_bounded};

/// The identity provider has so long to answer.
const LOGIN_TIME_MAX: Duration = Duration::from_secs(5);
/// A token's lifetime where the provider does not say (RFC 6749 leaves it open).
const LIFETIME_DEFAULT_S: u64 = 3_600;
/// No renewal is tried again before this has passed since one failed, or since a renewed token was refused.
const RENEWAL_PAUSE: Duration = Duration::from_secs(1);
const TOKEN_ANSWER_BYTES_MAX: usize = 1 << 20;

/// A token as it goes into `Authorization`.
#[derive(Clone)]
pub(super) struct Token {
    value: Arc<str>,
    serial: u64,
    renew_at: Instant,
    expires_at: Instant,
}

impl Token {
    fn new(value: &str, serial: u64, asked_at: Instant, lifetime: Duration) -> Self {
        let renew_at = asked_at + lifetime - Duration::from_secs(30).min(lifetime / 2);
        Self { value: value.into(), serial, renew_at, expires_at: asked_at + lifetime }
    }

    pub(super) fn as_str(&self) -> &str {
        &self.value
    }
}

/// Client credentials and the token they last brought.
pub(super) struct Login {
    client: Client,
    uri: String,
    form: Vec<(&'static str, String)>,
    held: RwLock<Held>,
    /// Whoever holds it is asking the identity provider.
    renewing: Arc<Mutex<()>>,
}

#[derive(Default)]
struct Held {
    token: Option<Token>,
    failed: Option<(Instant, CatalogError)>,
    forced_at: Option<Instant>,
}

#[derive(Deserialize)]
struct Granted {
    access_token: String,
    expires_in: Option<u64>,
}

impl Login {
    pub(super) fn new(client: Client, uri: &str, id: &str, secret: &str, scope: Option<&str>) -> Self {
        let mut form = vec![("grant_type", "client_credentials".to_owned())];
        form.extend(scope.map(|scope| ("scope", scope.to_owned())));
        form.extend([("client_id", id.to_owned()), ("client_secret", secret.to_owned())]);
        Self { client, uri: uri.to_owned(), form, held: RwLock::default(), renewing: Arc::default() }
    }

    /// A token that is good now. Waits for the identity provider only when there is none.
    pub(super) async fn token(self: &Arc<Self>) -> Result<Token, CatalogError> {
        let now = Instant::now();
        let held = self.held().token.clone();
        match held {
            Some(token) if now < token.renew_at => Ok(token),
            Some(token) if now < token.expires_at => {
                self.renew_beside();
                Ok(token)
            }
            _ => self.renewed(None).await,
        }
    }

    /// Another token than the one the catalog has just refused.
    pub(super) async fn token_instead_of(self: &Arc<Self>, refused: &Token) -> Result<Token, CatalogError> {
        {
            // A catalog that refuses even new tokens must not make us flood the identity provider.
            let held = self.held();
            let current = held.token.as_ref().is_some_and(|token| token.serial == refused.serial);
            if current && held.forced_at.is_some_and(|at| at.elapsed() < RENEWAL_PAUSE) {
                return Err(CatalogError::LoginRefused { reason: "a renewed token was refused too" });
            }
        }
        let token = self.renewed(Some(refused.serial)).await?;
        self.held_mut().forced_at = Some(Instant::now());
        Ok(token)
    }

    /// Waits for a token that is neither expired nor the refused one; all who wait share one request.
    async fn renewed(self: &Arc<Self>, refused: Option<u64>) -> Result<Token, CatalogError> {
        let asked_at = Instant::now();
        let _one_at_a_time = self.renewing.lock().await;
        {
            let held = self.held();
            let usable = |token: &&Token| Some(token.serial) != refused && Instant::now() < token.expires_at;
            if let Some(token) = held.token.as_ref().filter(usable) {
                return Ok(token.clone());
            }
            if let Some((_, error)) = held.failed.as_ref().filter(|(at, _)| *at >= asked_at) {
                return Err(error.clone());
            }
        }
        self.renew().await
    }

    fn renew_beside(self: &Arc<Self>) {
        if self.held().failed.as_ref().is_some_and(|(at, _)| at.elapsed() < RENEWAL_PAUSE) {
            return;
        }
        if let Ok(one_at_a_time) = self.renewing.clone().try_lock_owned() {
            let login = self.clone();
            tokio::spawn(async move {
                let _one_at_a_time = one_at_a_time;
                // Logged where it happens; the calls go on with the token they have.
                let _ = login.renew().await;
            });
        }
    }

    async fn renew(&self) -> Result<Token, CatalogError> {
        let asked_at = Instant::now();
        let granted = timeout(LOGIN_TIME_MAX, self.ask()).await.unwrap_or_else(|_| {
            Err(CatalogError::unavailable("the identity provider did not answer in time"))
        });
        let mut held = self.held_mut();
        match granted {
            Ok(granted) => {
                // A year is enough for anyone, and an instant cannot be infinitely far away.
                let lifetime = granted.expires_in.unwrap_or(LIFETIME_DEFAULT_S).min(31_536_000);
                let serial = held.token.as_ref().map_or(0, |token| token.serial + 1);
                let token =
                    Token::new(&granted.access_token, serial, asked_at, Duration::from_secs(lifetime));
                tracing::info!(lifetime_s = lifetime, "catalog login renewed");
                held.token = Some(token.clone());
                held.failed = None;
                Ok(token)
            }
            Err(error) => {
                tracing::warn!(error = %error, "catalog login could not be renewed");
                held.failed = Some((Instant::now(), error.clone()));
                Err(error)
            }
        }
    }

    async fn ask(&self) -> Result<Granted, CatalogError> {
        let unreachable = |error: reqwest::Error| CatalogError::Unavailable {
            reason: "the identity provider cannot be reached",
            reached: false,
            source: Some(Arc::new(error.without_url())),
        };
        let response = self.client.post(&self.uri).form(&self.form).send().await.map_err(unreachable)?;
        let status = response.status();
        if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS {
            return Err(CatalogError::unavailable("the identity provider is in trouble"));
        }
        if !status.is_success() {
            return Err(CatalogError::LoginRefused {
                reason: "the identity provider refused our credentials",
            });
        }
        let body = read_bounded(response, TOKEN_ANSWER_BYTES_MAX).await.map_err(CatalogError::not_reached)?;
        // The parser's message could quote the token: it is not kept.
        serde_json::from_slice(&body)
            .map_err(|_| CatalogError::LoginRefused { reason: "the identity provider sent no token" })
    }

    fn held(&self) -> RwLockReadGuard<'_, Held> {
        self.held.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn held_mut(&self) -> RwLockWriteGuard<'_, Held> {
        self.held.write().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_renewed_half_way_but_at_most_thirty_seconds_early() {
        let now = Instant::now();
        for (lifetime_s, renewed_after_s) in [(20, 10), (60, 30), (3_600, 3_570), (0, 0)] {
            let token = Token::new("t", 0, now, Duration::from_secs(lifetime_s));
            assert_eq!(token.renew_at - now, Duration::from_secs(renewed_after_s));
            assert_eq!(token.expires_at - now, Duration::from_secs(lifetime_s));
        }
    }
}
