//! What an operator writes about tokens, and what is wrong with it.

use std::collections::HashSet;

use jsonwebtoken::Algorithm;
use reqwest::Url;
use serde::{Deserialize, Deserializer, Serialize};

use crate::secret::Secret;

/// HS256 with a shorter key can be searched.
const SECRET_BYTES_MIN: usize = 32;
/// Issuers of one server. Each may cost a fetch at its own pace, so their number is bounded.
const ISSUERS_MAX: usize = 16;
/// More than this is no difference of clocks.
const LEEWAY_S_MAX: u64 = 300;
const FETCH_MS_MAX: u64 = 30_000;
const NAMES_MAX: usize = 16;
const NAME_BYTES_MAX: usize = 256;

/// How callers prove who they are.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Shared secret of HS256 tokens, at least 32 bytes.
    pub jwt_secret: Option<Secret>,
    /// Where the one issuer publishes its keys (JWKS), instead of `jwt_secret`. Needs `jwt_issuer` and `jwt_audience`.
    pub jwks_uri: Option<String>,
    /// Required `iss` of a token.
    pub jwt_issuer: Option<String>,
    /// Required `aud` of a token.
    pub jwt_audience: Option<String>,
    /// More issuers, or one with more to say about it.
    pub issuers: Vec<IssuerSettings>,
    /// The token of a trusted back end, which may name any workspace. At least 32 bytes.
    pub service_token: Option<Secret>,
    /// No authentication: whoever reaches the port may do anything. Only on loopback, unless `open_anywhere`.
    pub open: bool,
    /// Allows `open` on an address that others can reach.
    pub open_anywhere: bool,
}

/// Somebody whose tokens are accepted, for any workspace.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct IssuerSettings {
    /// `iss` of its tokens, exactly. Empty only for the one issuer of `auth.jwt_secret`: then any will do.
    pub issuer: String,
    /// Shared secret (HS256), at least 32 bytes; or `jwks_uri`.
    pub secret: Option<Secret>,
    /// Where it publishes its keys (RFC 7517): https, or http on loopback.
    pub jwks_uri: Option<String>,
    /// What its tokens may be signed with. Empty: HS256 with a secret, all others with a `jwks_uri`.
    pub algorithms: Vec<Accepted>,
    /// `aud` of a token has to name one of these; one text or a list.
    #[serde(deserialize_with = "one_or_more")]
    pub audience: Vec<String>,
    /// Says that tokens for anybody are meant for us: an issuer with a `jwks_uri` often serves others, too.
    pub any_audience: bool,
    /// By how much clocks may differ, seconds.
    pub leeway_s: u64,
    /// Claims without which a token does not hold, beside `exp` and the workspace.
    pub required_claims: Vec<String>,
    /// Which claim says what.
    pub claims: ClaimNames,
    /// Roles that grant writing.
    pub write_roles: Vec<String>,
    /// Published keys are asked for anew after so long, seconds; a little earlier, and beside the requests, while there are some.
    pub keys_ttl_s: u64,
    /// While asking fails, the keys in hand serve until they are so old, seconds.
    pub keys_age_s_max: u64,
    /// No token makes us ask again sooner than this after the last time, seconds.
    pub refetch_pause_s: u64,
    /// The issuer has so long to answer, milliseconds.
    pub fetch_ms_max: u64,
}

impl Default for IssuerSettings {
    fn default() -> Self {
        IssuerSettings {
            issuer: String::new(),
            secret: None,
            jwks_uri: None,
            algorithms: Vec::new(),
            audience: Vec::new(),
            any_audience: false,
            leeway_s: 5,
            required_claims: Vec::new(),
            claims: ClaimNames::default(),
            write_roles: Vec::new(),
            keys_ttl_s: 600,
            keys_age_s_max: 86_400,
            refetch_pause_s: 10,
            fetch_ms_max: 3_000,
        }
    }
}

/// Which claim says what: a name, or a JSON pointer such as `/realm_access/roles`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ClaimNames {
    /// The workspace.
    pub workspace: String,
    /// Who it is, for the log.
    pub subject: String,
    /// Their roles: a list, or words with spaces between.
    pub roles: String,
    /// `true` there grants writing.
    pub write: String,
    /// The tables (`schema.table`) and schemas (`schema.*`) to which that is restricted: a list, or words with spaces between.
    pub write_tables: String,
}

impl Default for ClaimNames {
    fn default() -> Self {
        let name = str::to_owned;
        ClaimNames {
            workspace: name("workspace_id"),
            subject: name("sub"),
            roles: name("roles"),
            write: name("write"),
            write_tables: name("write_tables"),
        }
    }
}

/// The algorithms that a token may be signed with (RFC 7518, RFC 8037).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum Accepted {
    HS256,
    RS256,
    RS384,
    RS512,
    ES256,
    ES384,
    EdDSA,
}

impl Accepted {
    /// Those that an issuer's published keys can have.
    pub(super) const PUBLISHED: [Accepted; 6] = [
        Accepted::RS256,
        Accepted::RS384,
        Accepted::RS512,
        Accepted::ES256,
        Accepted::ES384,
        Accepted::EdDSA,
    ];

    pub(super) fn algorithm(self) -> Algorithm {
        match self {
            Accepted::HS256 => Algorithm::HS256,
            Accepted::RS256 => Algorithm::RS256,
            Accepted::RS384 => Algorithm::RS384,
            Accepted::RS512 => Algorithm::RS512,
            Accepted::ES256 => Algorithm::ES256,
            Accepted::ES384 => Algorithm::ES384,
            Accepted::EdDSA => Algorithm::EdDSA,
        }
    }
}

impl Settings {
    /// All issuers, also the one that the short settings describe.
    pub(super) fn all_issuers(&self) -> Vec<IssuerSettings> {
        let short = (self.jwt_secret.is_some() || self.jwks_uri.is_some()).then(|| IssuerSettings {
            issuer: self.jwt_issuer.clone().unwrap_or_default(),
            secret: self.jwt_secret.clone(),
            jwks_uri: self.jwks_uri.clone(),
            audience: self.jwt_audience.iter().cloned().collect(),
            ..IssuerSettings::default()
        });
        short.into_iter().chain(self.issuers.iter().cloned()).collect()
    }

    /// Everything that is wrong with the settings, for a server that listens on loopback or not.
    pub fn faults(&self, loopback: bool) -> Vec<String> {
        let mut faults = Vec::new();
        if self.service_token.as_ref().is_some_and(is_short) {
            faults.push(format!("auth.service_token: shorter than {SECRET_BYTES_MIN} bytes"));
        }
        if self.open && !loopback && !self.open_anywhere {
            faults.push(
                "auth.open: only on a loopback address, unless auth.open_anywhere says otherwise".to_owned(),
            );
        }
        faults.extend(self.short_faults());
        faults.extend((0..).zip(&self.issuers).flat_map(|(at, issuer): (usize, _)| {
            issuer.faults().into_iter().map(move |fault| format!("auth.issuers[{at}].{fault}"))
        }));
        let issuers = self.all_issuers();
        if issuers.len() > ISSUERS_MAX {
            faults.push(format!("auth.issuers: more than {ISSUERS_MAX}"));
        }
        let mut seen = HashSet::new();
        for issuer in issuers.iter().filter(|issuer| !seen.insert(&issuer.issuer)) {
            faults.push(format!("auth.issuers: {:?} is there twice", issuer.issuer));
        }
        if !self.open && issuers.is_empty() && self.service_token.is_none() {
            faults.push(
                "auth: none of jwt_secret, jwks_uri, issuers, service_token, open is set, so nobody could ask \
                 anything"
                    .to_owned(),
            );
        }
        faults
    }

    /// What is wrong with the short settings of a single issuer.
    fn short_faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        if self.jwt_secret.as_ref().is_some_and(is_short) {
            faults.push(format!("auth.jwt_secret: shorter than {SECRET_BYTES_MIN} bytes"));
        }
        let mut wrong = |wrong: bool, text: &str| {
            if wrong {
                faults.push(format!("auth.{text}"));
            }
        };
        let published = self.jwks_uri.is_some();
        let empty = |text: &Option<String>| text.as_deref() == Some("");
        wrong(empty(&self.jwt_issuer), "jwt_issuer: is empty");
        wrong(empty(&self.jwt_audience), "jwt_audience: is empty");
        wrong(published && self.jwt_secret.is_some(), "jwks_uri: not beside jwt_secret; see auth.issuers");
        wrong(published && self.jwt_issuer.is_none(), "jwks_uri: needs jwt_issuer");
        wrong(published && self.jwt_audience.is_none(), "jwks_uri: needs jwt_audience");
        wrong(self.jwks_uri.as_deref().is_some_and(|uri| !is_safe(uri)), JWKS_URI);
        // A protection that was asked for and would not be there.
        let nobody = self.jwt_secret.is_none() && !published;
        wrong(
            nobody && (self.jwt_issuer.is_some() || self.jwt_audience.is_some()),
            "jwt_issuer, jwt_audience: without jwt_secret or jwks_uri they protect nothing",
        );
        faults
    }

    /// Whose tokens are accepted, without secrets and addresses.
    pub fn issuer_facts(&self) -> Vec<IssuerFacts> {
        let of = |issuer: IssuerSettings| IssuerFacts {
            algorithms: issuer.accepted(),
            issuer: Some(issuer.issuer).filter(|name| !name.is_empty()),
            audience: issuer.audience,
        };
        self.all_issuers().into_iter().map(of).collect()
    }

    /// What is accepted, for `/config` and the log.
    pub fn modes(&self) -> Vec<&'static str> {
        let issuers = self.all_issuers();
        let modes = [
            ("jwt-hs256", issuers.iter().any(|issuer| issuer.secret.is_some())),
            ("jwt-jwks", issuers.iter().any(|issuer| issuer.jwks_uri.is_some())),
            ("service-token", self.service_token.is_some()),
            ("open", self.open),
        ];
        modes.into_iter().filter(|(_, on)| *on).map(|(name, _)| name).collect()
    }
}

/// What may be told of an issuer.
#[derive(Debug, Clone, Serialize)]
pub struct IssuerFacts {
    /// `iss` of its tokens; any where there is none.
    pub issuer: Option<String>,
    /// What its tokens may be signed with.
    pub algorithms: Vec<Accepted>,
    /// `aud` of its tokens; any where there is none.
    pub audience: Vec<String>,
}

const JWKS_URI: &str = "jwks_uri: must be an https URL without user and fragment, or http on loopback";

impl IssuerSettings {
    /// What its tokens may be signed with.
    pub(super) fn accepted(&self) -> Vec<Accepted> {
        match (&self.secret, self.algorithms.is_empty()) {
            (Some(_), true) => vec![Accepted::HS256],
            (None, true) => Accepted::PUBLISHED.to_vec(),
            (_, false) => self.algorithms.clone(),
        }
    }

    fn faults(&self) -> Vec<String> {
        let mut faults = self.key_faults();
        let mut wrong = |wrong: bool, text: &str| {
            if wrong {
                faults.push(text.to_owned());
            }
        };
        let is_name = |text: &String| (1..=NAME_BYTES_MAX).contains(&text.len());
        let are_names = |list: &[String]| list.len() <= NAMES_MAX && list.iter().all(is_name);
        wrong(!is_name(&self.issuer), "issuer: must be 1 to 256 bytes");
        wrong(!are_names(&self.audience), "audience: at most 16, of 1 to 256 bytes");
        wrong(
            self.any_audience && !self.audience.is_empty(),
            "any_audience: contradicts audience, which would not be looked at",
        );
        wrong(self.leeway_s > LEEWAY_S_MAX, "leeway_s: more than 300");
        wrong(!are_names(&self.required_claims), "required_claims: at most 16, of 1 to 256 bytes");
        wrong(!are_names(&self.write_roles), "write_roles: at most 16, of 1 to 256 bytes");
        let ClaimNames { workspace, subject, roles, write, write_tables } = &self.claims;
        let named = [workspace, subject, roles, write, write_tables].into_iter().all(is_name);
        wrong(!named, "claims: a name must be 1 to 256 bytes");
        wrong(self.keys_ttl_s == 0, "keys_ttl_s: must be at least 1");
        wrong(self.keys_age_s_max < self.keys_ttl_s, "keys_age_s_max: less than keys_ttl_s");
        wrong(self.keys_age_s_max > 31_536_000, "keys_age_s_max: more than a year");
        wrong(self.refetch_pause_s == 0, "refetch_pause_s: must be at least 1");
        wrong(self.refetch_pause_s > self.keys_ttl_s, "refetch_pause_s: more than keys_ttl_s");
        wrong(!(1..=FETCH_MS_MAX).contains(&self.fetch_ms_max), "fetch_ms_max: must be 1 to 30000");
        faults
    }

    /// What is wrong with what its tokens are signed with.
    fn key_faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        let mut wrong = |wrong: bool, text: &str| {
            if wrong {
                faults.push(text.to_owned());
            }
        };
        let published = self.jwks_uri.is_some();
        wrong(published == self.secret.is_some(), "secret, jwks_uri: exactly one of them must be set");
        wrong(self.secret.as_ref().is_some_and(is_short), "secret: shorter than 32 bytes");
        wrong(self.jwks_uri.as_deref().is_some_and(|uri| !is_safe(uri)), JWKS_URI);
        let shared = |algorithm: &Accepted| *algorithm == Accepted::HS256;
        wrong(published && self.algorithms.iter().any(shared), "algorithms: HS256 needs a secret");
        wrong(
            self.secret.is_some() && !self.algorithms.iter().all(shared),
            "algorithms: with a secret only HS256",
        );
        wrong(
            published && self.audience.is_empty() && !self.any_audience,
            "audience: is missing, so that tokens for others would hold; any_audience = true accepts them",
        );
        faults
    }
}

fn is_short(secret: &Secret) -> bool {
    secret.reveal().len() < SECRET_BYTES_MIN
}

/// Whoever can change what is fetched can sign tokens: the way there must be safe.
fn is_safe(uri: &str) -> bool {
    let Ok(url) = Url::parse(uri) else { return false };
    let host = url.host_str().unwrap_or_default();
    let ip = host.trim_start_matches('[').trim_end_matches(']').parse::<std::net::IpAddr>();
    let loopback = host == "localhost" || ip.is_ok_and(|ip| ip.is_loopback());
    let plain = url.username().is_empty() && url.password().is_none() && url.fragment().is_none();
    plain && (url.scheme() == "https" || (url.scheme() == "http" && loopback))
}

fn one_or_more<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Written {
        One(String),
        More(Vec<String>),
    }
    Ok(match Written::deserialize(deserializer)? {
        Written::One(text) => vec![text],
        Written::More(texts) => texts,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "issuer = 'https://idp.example/'\njwks_uri = 'https://idp.example/keys'\n";

    fn issuer(text: &str) -> Vec<String> {
        toml::from_str::<IssuerSettings>(text).unwrap().faults()
    }

    #[test]
    fn settings_that_let_nobody_or_everybody_in_are_faults() {
        assert_eq!(Settings::default().faults(true).len(), 1);
        let open = Settings { open: true, ..Settings::default() };
        assert!(open.faults(true).is_empty());
        assert_eq!(open.faults(false).len(), 1);
        let short = Settings { jwt_secret: Some(Secret::new("short")), ..Settings::default() };
        assert_eq!(short.faults(true).len(), 1);
    }

    #[test]
    fn a_protection_that_could_not_be_enforced_is_a_fault() {
        assert_eq!(issuer(&format!("{GOOD}audience = 'duck'")), Vec::<String>::new());
        assert_eq!(issuer(&format!("{GOOD}any_audience = true")), Vec::<String>::new());
        for (text, part) in [
            ("", "audience: is missing"),
            ("audience = ['a']\nany_audience = true", "any_audience: contradicts"),
            ("audience = ''", "audience: at most"),
            ("audience = 'a'\nalgorithms = ['HS256']", "HS256 needs a secret"),
            ("audience = 'a'\nsecret = 'short'", "exactly one"),
            ("audience = 'a'\nsecret = 'short'", "shorter"),
            ("audience = 'a'\nleeway_s = 301", "leeway_s"),
            ("audience = 'a'\nkeys_age_s_max = 1", "keys_age_s_max"),
            ("audience = 'a'\nrefetch_pause_s = 0", "refetch_pause_s"),
            ("audience = 'a'\nfetch_ms_max = 0", "fetch_ms_max"),
            ("audience = 'a'\nclaims.workspace = ''", "claims"),
        ] {
            let faults = issuer(&format!("{GOOD}{text}"));
            assert!(faults.iter().any(|fault| fault.contains(part)), "{text}: {faults:?}");
        }
        let shared = "issuer = 'x'\nsecret = '0123456789abcdef0123456789abcdef'\n";
        assert_eq!(issuer(shared), Vec::<String>::new());
        assert_eq!(issuer(&format!("{shared}algorithms = ['RS256']")).len(), 1);
        for unsafe_algorithm in ["none", "HS512", "PS256", "rs256"] {
            let text = format!("{GOOD}algorithms = ['{unsafe_algorithm}']");
            assert!(toml::from_str::<IssuerSettings>(&text).is_err(), "{unsafe_algorithm}");
        }
    }

    #[test]
    fn keys_are_fetched_over_https_or_from_this_machine() {
        for good in
            ["https://idp.example/k?v=1", "http://127.0.0.1:1/k", "http://localhost/k", "http://[::1]/k"]
        {
            assert!(is_safe(good), "{good}");
        }
        for bad in [
            "http://idp.example/k",
            "http://127.0.0.1.example/k",
            "file:///k",
            "https://u:p@idp.example/",
            "k",
            "",
        ] {
            assert!(!is_safe(bad), "{bad}");
        }
    }

    #[test]
    fn the_short_settings_are_one_issuer_and_their_faults_are_all_listed() {
        let text = "jwks_uri = 'http://idp.example/k'\njwt_secret = 'short'\nissuers = [{ issuer = '' }]";
        let faults = toml::from_str::<Settings>(text).unwrap().faults(true);
        for part in [
            "jwt_secret: shorter",
            "not beside",
            "needs jwt_issuer",
            "needs jwt_audience",
            "https",
            "[0].secret",
        ] {
            assert!(faults.iter().any(|fault| fault.contains(part)), "{part}: {faults:?}");
        }
        let twice = "jwt_issuer = 'a'\njwt_secret = '0123456789abcdef0123456789abcdef'\n\
                     [[issuers]]\nissuer = 'a'\nsecret = '0123456789abcdef0123456789abcdef'";
        assert_eq!(toml::from_str::<Settings>(twice).unwrap().faults(true).len(), 1);
        let idle = Settings { jwt_audience: Some("a".into()), open: true, ..Settings::default() };
        assert_eq!(idle.faults(true).len(), 1);
    }
}
