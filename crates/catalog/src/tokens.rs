//! Client credentials and the bearer tokens given for them. In memory: a restart ends every token, and clients renew.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use tokio::time::Instant;
use uuid::Uuid;

/// Beyond so many live tokens the oldest one ends early.
const TOKENS_MAX: usize = 4096;
/// A longer life than a year is a year.
const TTL_S_MAX: u64 = 365 * 24 * 3600;

/// Knows the one client and the tokens it holds.
pub(crate) struct Tokens {
    client_id: String,
    client_secret: String,
    ttl: Duration,
    live: Mutex<HashMap<String, Instant>>,
}

impl Tokens {
    pub(crate) fn new(client_id: String, client_secret: String, ttl_s: u64) -> Self {
        let ttl = Duration::from_secs(ttl_s.min(TTL_S_MAX));
        Tokens { client_id, client_secret, ttl, live: Mutex::default() }
    }

    /// Whether these are the client's credentials, as they stand in a form.
    pub(crate) fn is_client(&self, id: &str, secret: &str) -> bool {
        same(id, &self.client_id) & same(secret, &self.client_secret)
    }

    /// Whether an `Authorization` header holds the client's credentials (`Basic`).
    pub(crate) fn is_basic_client(&self, header: &str) -> bool {
        let expected = STANDARD.encode(format!("{}:{}", self.client_id, self.client_secret));
        credentials(header, "basic").is_some_and(|given| same(given, &expected))
    }

    /// A new token and its life in seconds.
    pub(crate) fn issue(&self) -> (String, u64) {
        let token = format!("{}{}", Uuid::new_v4().simple(), Uuid::new_v4().simple());
        let now = Instant::now();
        let mut live = self.live.lock().unwrap_or_else(PoisonError::into_inner);
        live.retain(|_, ends| *ends > now);
        if live.len() >= TOKENS_MAX
            && let Some(oldest) = live.iter().min_by_key(|(_, ends)| **ends).map(|(token, _)| token.clone())
        {
            live.remove(&oldest);
        }
        live.insert(token.clone(), now + self.ttl);
        (token, self.ttl.as_secs())
    }

    /// Whether an `Authorization` header holds a live token.
    pub(crate) fn admits(&self, header: &str) -> bool {
        let live = self.live.lock().unwrap_or_else(PoisonError::into_inner);
        credentials(header, "bearer")
            .and_then(|token| live.get(token))
            .is_some_and(|ends| *ends > Instant::now())
    }
}

/// What follows the scheme, whose case does not matter.
fn credentials<'h>(header: &'h str, scheme: &str) -> Option<&'h str> {
    let (given, rest) = header.split_once(' ')?;
    given.eq_ignore_ascii_case(scheme).then(|| rest.trim())
}

/// Compares without ending early, so that time tells nothing about where two texts differ.
fn same(a: &str, b: &str) -> bool {
    a.len() == b.len() && a.bytes().zip(b.bytes()).fold(0, |differ, (x, y)| differ | (x ^ y)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(ttl_s: u64) -> Tokens {
        Tokens::new("duck".to_owned(), "quack".to_owned(), ttl_s)
    }

    #[tokio::test(start_paused = true)]
    async fn a_token_ends_with_its_life() {
        let tokens = tokens(90);
        let (token, life_s) = tokens.issue();
        assert_eq!(life_s, 90);
        assert!(tokens.admits(&format!("Bearer {token}")));
        assert!(tokens.admits(&format!("bearer {token}")));
        tokio::time::advance(Duration::from_secs(90)).await;
        assert!(!tokens.admits(&format!("Bearer {token}")));
    }

    #[tokio::test(start_paused = true)]
    async fn tokens_are_bounded_and_the_oldest_goes_first() {
        let tokens = tokens(3600);
        let (first, _) = tokens.issue();
        tokio::time::advance(Duration::from_secs(1)).await;
        let (second, _) = tokens.issue();
        tokio::time::advance(Duration::from_secs(1)).await;
        for _ in 2..=TOKENS_MAX {
            tokens.issue();
        }
        assert!(!tokens.admits(&format!("Bearer {first}")));
        assert!(tokens.admits(&format!("Bearer {second}")));
    }

    #[test]
    fn only_the_client_is_the_client() {
        let tokens = tokens(1);
        assert!(tokens.is_client("duck", "quack"));
        assert!(!tokens.is_client("duck", "quac"));
        assert!(!tokens.is_client("goose", "quack"));
        assert!(tokens.is_basic_client("Basic ZHVjazpxdWFjaw=="));
        assert!(!tokens.is_basic_client("Basic ZHVjazpxdWFj"));
        assert!(!tokens.is_basic_client("ZHVjazpxdWFjaw=="));
        assert!(!tokens.admits("Bearer "));
        assert!(!tokens.admits(""));
    }
}
