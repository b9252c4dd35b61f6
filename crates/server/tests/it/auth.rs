//! Tokens of issuers that publish their keys: what holds, what never does, and what happens when keys change or cannot be had.

use std::time::Duration;

use duck_contract::Code;
use futures::future::join_all;
use jsonwebtoken::{Algorithm, DecodingKey, DecodingKeyKind, EncodingKey, Header};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::issuers::{Believing, IN_FAR_FUTURE, Issuer, Key, Manner, SECRET, SHARING, believing, pause};
use crate::world::{problem, read_toml};

/// More than a fetch may take, on a slow machine.
const SOON: Duration = Duration::from_secs(8);

async fn comes_to_hold(server: &Believing, token: &str, what: &str) {
    let began = Instant::now();
    while !server.holds(token).await {
        assert!(began.elapsed() < SOON, "{what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn refused(server: &Believing, token: &str, code: Code, what: &str) {
    let problem = problem(server.ask(token).await).await;
    assert_eq!(problem.code, code, "{what}: {}", problem.detail);
}

#[tokio::test]
async fn every_algorithm_holds_with_a_published_key() {
    let server = believing().await;
    let issuer = server.issuer("algorithms");
    let keys: Vec<Key> = [
        Algorithm::RS256,
        Algorithm::RS384,
        Algorithm::RS512,
        Algorithm::ES256,
        Algorithm::ES384,
        Algorithm::EdDSA,
    ]
    .into_iter()
    .map(|algorithm| Key::new(&format!("{algorithm:?}"), algorithm))
    .collect();
    issuer.publishes(&keys.iter().collect::<Vec<_>>());
    // All who come first wait for one fetch, and are served by it.
    let first = keys[0].sign(&issuer.claims());
    for answer in join_all((0..40).map(|_| server.ask(&first))).await {
        assert_eq!(answer.status(), 200);
    }
    assert_eq!(issuer.fetches(), 1);
    for key in &keys {
        let answer = server.with(&key.sign(&issuer.claims())).rows("SELECT 1").await;
        assert_eq!(answer, json!([[1]]), "{:?}", key.header.alg);
        // One bit of the signature less.
        let mut changed = key.sign(&issuer.claims());
        let at = changed.rfind('.').unwrap() + 1;
        let other = if changed[at..].starts_with('A') { "B" } else { "A" };
        changed.replace_range(at..=at, other);
        refused(server, &changed, Code::Unauthenticated, "a changed signature").await;
    }
    // Where only one key fits, a token need not say which.
    let anonymous = Header::new(Algorithm::EdDSA);
    assert!(server.holds(&keys[5].sign_as(&anonymous, &issuer.claims())).await);
}

#[tokio::test]
async fn claims_have_the_names_that_the_issuer_gives_them() {
    let server = believing().await;
    let issuer = server.issuer("names");
    let key = Key::new("k", Algorithm::ES256);
    issuer.publishes(&[&key]);
    let just_now = jsonwebtoken::get_current_timestamp() - 30;
    let claims = json!({
        "iss": issuer.name, "aud": ["x", "duck"], "exp": just_now, "email": "ann@acme.example",
        "org": {"id": "acme"}, "scope": "lake:read lake:write",
    });
    let create = |name: &str| json!({"sql": format!("CREATE TABLE {name}(i INTEGER)"), "allow_writes": true, "format": "json"});
    server.with(&key.sign(&claims)).json(create("by_role")).await;
    let changed = |path: &str, value: Value| {
        let mut changed = claims.clone();
        *changed.pointer_mut(path).unwrap() = value;
        key.sign(&changed)
    };
    let reader = changed("/scope", json!("lake:read"));
    assert_eq!(server.with(&reader).problem(&create("no")).await.code, Code::WritesNotGranted);
    let granted = changed("/org", json!({"id": "acme", "write": true}));
    server.with(&granted).json(create("by_grant")).await;
    refused(server, &changed("/email", Value::Null), Code::Unauthenticated, "a required claim").await;
    let elsewhere = json!({"id": null});
    refused(server, &changed("/org", elsewhere), Code::Unauthenticated, "no workspace").await;
    refused(server, &changed("/exp", json!(just_now - 60)), Code::Unauthenticated, "too old").await;
}

#[tokio::test]
async fn a_rotation_is_followed_without_a_restart() {
    let server = believing().await;
    let issuer = server.issuer("rotation");
    let (first, second, third) = (
        Key::new("first", Algorithm::ES256),
        Key::new("second", Algorithm::RS256),
        // Another key under the name of the second.
        Key::new("second", Algorithm::RS256),
    );
    issuer.publishes(&[&first]);
    let token = |key: &Key| key.sign(&issuer.claims());
    comes_to_hold(server, &token(&first), "the first key").await;
    refused(server, &token(&second), Code::Unauthenticated, "not published yet").await;
    issuer.publishes(&[&first, &second]);
    comes_to_hold(server, &token(&second), "a key beside the first").await;
    assert!(server.holds(&token(&first)).await);
    issuer.publishes(&[&third]);
    comes_to_hold(server, &token(&third), "a key under an old name").await;
    refused(server, &token(&second), Code::Unauthenticated, "replaced").await;
    refused(server, &token(&first), Code::Unauthenticated, "withdrawn").await;
    assert!(server.holds(&token(&third)).await, "what does not hold changes nothing for what does");
}

#[tokio::test]
async fn while_an_issuer_is_down_its_keys_serve_up_to_the_bound() {
    let server = believing().await;
    let issuer = server.issuer("down");
    let key = Key::new("k", Algorithm::EdDSA);
    issuer.publishes(&[&key]);
    let token = key.sign(&issuer.claims());
    comes_to_hold(server, &token, "at first").await;
    for manner in [Manner::Status(500), Manner::Never, Manner::Garbage] {
        issuer.behaves(manner);
        let began = Instant::now();
        // Keys were at most 2 s old, or at most the length of a fetch more, and may become 6 s old.
        let lasted = loop {
            let asked = Instant::now();
            let answer = server.ask(&token).await;
            assert!(asked.elapsed() < SOON, "{manner:?}: {:?}", asked.elapsed());
            if !answer.status().is_success() {
                assert_eq!(answer.headers()["retry-after"], "1");
                assert_eq!(problem(answer).await.code, Code::AuthUnavailable, "{manner:?}");
                break began.elapsed();
            }
            assert!(began.elapsed() < SOON, "{manner:?}: keys serve past their bound");
            tokio::time::sleep(Duration::from_millis(50)).await;
        };
        assert!(lasted > Duration::from_millis(2_500), "{manner:?}: {lasted:?}");
        issuer.behaves(Manner::Well);
        comes_to_hold(server, &token, "well again").await;
    }
}

#[tokio::test]
async fn a_silent_issuer_costs_one_fetch_and_no_more_than_its_deadline() {
    let server = believing().await;
    let issuer = server.issuer("silent");
    let key = Key::new("k", Algorithm::ES384);
    issuer.publishes(&[&key]);
    issuer.behaves(Manner::Never);
    let token = key.sign(&issuer.claims());
    let began = Instant::now();
    let answers = join_all((0..40).map(|_| server.ask(&token))).await;
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    for answer in answers {
        assert_eq!(problem(answer).await.code, Code::AuthUnavailable);
    }
    // A request that comes in when the others have been answered may begin the next one, after a second.
    let (fetches, seconds) = (issuer.fetches(), began.elapsed().as_secs());
    assert!(fetches <= 1 + seconds / 2, "{fetches} in {seconds} s");
    // The others' tokens are checked meanwhile.
    assert!(server.holds(&server.world.acme.token).await);
    issuer.behaves(Manner::Well);
    comes_to_hold(server, &token, "well again").await;
}

#[tokio::test]
async fn an_answer_without_an_end_is_cut_and_a_redirection_not_followed() {
    let server = believing().await;
    let (issuer, elsewhere) = (server.issuer("huge"), Issuer::start("elsewhere"));
    let key = Key::new("k", Algorithm::ES256);
    issuer.publishes(&[&key]);
    let token = key.sign(&issuer.claims());
    issuer.behaves(Manner::Huge);
    refused(server, &token, Code::AuthUnavailable, "without an end").await;
    let began = Instant::now();
    while issuer.taken().is_none() {
        assert!(began.elapsed() < SOON, "the connection was not cut");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // What lies in the two sockets counts as taken.
    assert!(issuer.taken().unwrap() < 16 << 20, "{:?}", issuer.taken());
    pause().await;
    elsewhere.publishes(&[&key]);
    issuer.behaves(Manner::Elsewhere(elsewhere.port()));
    refused(server, &token, Code::AuthUnavailable, "a redirection").await;
    assert_eq!(elsewhere.fetches(), 0);
    issuer.behaves(Manner::Well);
    comes_to_hold(server, &token, "well again").await;
}

#[tokio::test]
async fn a_thousand_tokens_with_random_keys_cost_a_few_fetches() {
    let server = believing().await;
    let issuer = server.issuer("spam");
    let (good, stranger) = (Key::new("good", Algorithm::ES256), Key::new("x", Algorithm::ES256));
    issuer.publishes(&[&good]);
    let token = good.sign(&issuer.claims());
    comes_to_hold(server, &token, "at first").await;
    let (before, began) = (issuer.fetches(), Instant::now());
    for round in 0..50 {
        let spam = (0..20).map(|n| {
            // By a name that nobody has published, and by one that somebody has.
            let kid = if n == 0 { "good".to_owned() } else { format!("random-{round}-{n}") };
            let header = Header { kid: Some(kid), ..stranger.header.clone() };
            stranger.sign_as(&header, &issuer.claims())
        });
        let spam: Vec<String> = spam.collect();
        for answer in join_all(spam.iter().map(|token| server.ask(token))).await {
            assert_eq!(problem(answer).await.code, Code::Unauthenticated);
        }
        assert!(server.holds(&token).await, "the good token holds meanwhile");
        // Over several pauses, so that they do cause fetches.
        tokio::time::sleep(Duration::from_millis(60)).await;
    }
    let (fetches, seconds) = (issuer.fetches() - before, began.elapsed().as_secs());
    println!("1000 tokens with random keys: {fetches} fetches in {seconds} s");
    assert!((1..=seconds + 2).contains(&fetches), "{fetches} fetches in {seconds} s");
    // And a key that is new among all this is found.
    let new = Key::new("new", Algorithm::ES256);
    issuer.publishes(&[&good, &new]);
    let renewed = new.sign(&issuer.claims());
    comes_to_hold(server, &renewed, "a new key").await;
    what_could_not_hold_costs_none(server, issuer, &stranger).await;
}

/// Tokens that are wrong at first sight, long after the last fetch.
async fn what_could_not_hold_costs_none(server: &Believing, issuer: &Issuer, stranger: &Key) {
    pause().await;
    let before = issuer.fetches();
    let with = |name: &str, value: Value| {
        let mut claims = issuer.claims();
        claims[name] = value;
        stranger.sign(&claims)
    };
    let good = stranger.sign(&issuer.claims());
    let (signed, _) = good.rsplit_once('.').unwrap();
    let header = |header: Header| stranger.sign_as(&header, &issuer.claims());
    for (what, token) in [
        ("no signature", format!("{signed}.")),
        ("two parts", signed.to_owned()),
        ("garbage", "a.b.c".to_owned()),
        ("expired", with("exp", json!(1_000_000_000))),
        ("no workspace", with("workspace_id", json!(7))),
        ("another issuer", with("iss", json!("https://nobody.example/"))),
        ("several issuers", with("iss", json!([issuer.name]))),
        ("a long key id", header(Header { kid: Some("k".repeat(300)), ..stranger.header.clone() })),
        ("extensions", header(Header { crit: Some(vec!["b64".into()]), ..stranger.header.clone() })),
        ("very long", with("more", json!("x".repeat(20_000)))),
    ] {
        refused(server, &token, Code::Unauthenticated, what).await;
        assert_eq!(issuer.fetches(), before, "{what}");
    }
}

#[tokio::test]
async fn no_algorithm_can_be_mistaken_for_another() {
    let server = believing().await;
    let issuer = server.issuer("confusion");
    let (rsa, ec, ed) = (
        Key::new("rsa", Algorithm::RS256),
        Key::new("ec", Algorithm::ES256),
        Key::new("ed", Algorithm::EdDSA),
    );
    let mut encrypting = Key::new("enc", Algorithm::RS256);
    encrypting.public["use"] = json!("enc");
    // Says nothing of its algorithm, as many issuers do.
    let mut plain = Key::new("plain", Algorithm::RS256);
    plain.public.as_object_mut().unwrap().remove("alg");
    issuer.publishes(&[&rsa, &ec, &ed, &encrypting, &plain]);
    let claims = issuer.claims();
    comes_to_hold(server, &rsa.sign(&claims), "at first").await;
    for key in [&ec, &ed, &plain] {
        assert!(server.holds(&key.sign(&claims)).await, "{:?}", key.header.kid);
    }
    let stranger = Key::new("rsa", Algorithm::RS256);
    let under = |key: &Key, alg: Algorithm, kid: &str| {
        key.sign_as(&Header { kid: Some(kid.to_owned()), ..Header::new(alg) }, &claims)
    };
    let mut tokens = vec![
        ("another key under this name", stranger.sign(&claims)),
        ("PS256 by a key for RS256", under(&rsa, Algorithm::PS256, "rsa")),
        ("RS512 by a key for RS256", under(&rsa, Algorithm::RS512, "rsa")),
        ("PS256 by a key for any", under(&plain, Algorithm::PS256, "plain")),
        ("the name of a key of another kind", under(&rsa, Algorithm::RS256, "ec")),
        ("a key for encryption", encrypting.sign(&claims)),
        ("no name, and two keys fit", under(&plain, Algorithm::RS256, "")),
        ("no name at all, and two keys fit", plain.sign_as(&Header::new(Algorithm::RS256), &claims)),
        ("a key brought along", {
            let jwk = serde_json::from_value(stranger.public.clone()).unwrap();
            stranger.sign_as(&Header { jwk: Some(jwk), ..stranger.header.clone() }, &claims)
        }),
        ("an address brought along", {
            let jku = Some(format!("http://127.0.0.1:{}/keys", issuer.port()));
            stranger.sign_as(&Header { jku, ..stranger.header.clone() }, &claims)
        }),
    ];
    // What everybody knows as the secret of an HMAC.
    let jwk = serde_json::from_value(rsa.public.clone()).unwrap();
    let decoding = DecodingKey::from_jwk(&jwk).unwrap();
    let DecodingKeyKind::RsaModulusExponent { n, .. } = decoding.kind() else {
        panic!("an RSA key has a modulus")
    };
    let texts = [
        rsa.public["n"].as_str().unwrap().as_bytes().to_vec(),
        rsa.public.to_string().into_bytes(),
        n.clone(),
    ];
    for secret in texts {
        for alg in [Algorithm::HS256, Algorithm::HS384, Algorithm::HS512] {
            for kid in [Some("rsa".to_owned()), None] {
                let header = Header { kid, ..Header::new(alg) };
                let key = EncodingKey::from_secret(&secret).unwrap();
                tokens.push(("HMAC by a public key", jsonwebtoken::encode(&header, &claims, &key).unwrap()));
            }
        }
    }
    // The secret of this server's own tokens is not this issuer's.
    let own = read_toml(&server.world.dir.join("duck-server.toml"))["auth"]["jwt_secret"].clone();
    let key = EncodingKey::from_secret(own.as_str().unwrap().as_bytes()).unwrap();
    tokens.push(("our own secret", jsonwebtoken::encode(&Header::default(), &claims, &key).unwrap()));
    for token in tokens.into_iter().chain(unsigned(&rsa.sign(&claims))) {
        refused(server, &token.1, Code::Unauthenticated, token.0).await;
    }
    assert_eq!(claims["exp"], IN_FAR_FUTURE, "none of them was refused for its age");
    assert!(server.holds(&rsa.sign(&claims)).await);
}

/// `none` in the spellings that have passed somewhere, over the claims of a good token: header in base64, with and without a signature.
fn unsigned(good: &str) -> Vec<(&'static str, String)> {
    let parts: Vec<&str> = good.split('.').collect();
    let mut tokens = Vec::new();
    // {"alg":"none"}, {"alg":"None"}, {"alg":"NONE"}, {"alg":""}, {"alg":null}, {}
    for header in [
        "eyJhbGciOiJub25lIn0",
        "eyJhbGciOiJOb25lIn0",
        "eyJhbGciOiJOT05FIn0",
        "eyJhbGciOiIifQ",
        "eyJhbGciOm51bGx9",
        "e30",
    ] {
        tokens.push(("unsigned", format!("{header}.{}.", parts[1])));
        tokens.push(("unsigned, with a signature", format!("{header}.{}.{}", parts[1], parts[2])));
    }
    tokens
}

#[tokio::test]
async fn operators_see_the_issuers_and_their_keys_and_tenants_do_not() {
    let server = believing().await;
    let get = async |path: &str, token: &str| -> Value {
        let ask = server.world.http.get(format!("{}{path}", server.world.url)).bearer_auth(token);
        let text = ask.send().await.unwrap().text().await.unwrap();
        assert!(!text.contains(SECRET) && !text.contains("/keys"), "{text}");
        serde_json::from_str(&text).unwrap()
    };
    let (service, tenant) = (&server.world.service_token, &server.world.acme.token);
    let config = get("/config", service).await;
    assert_eq!(config["auth"], json!(["jwt-hs256", "jwt-jwks", "service-token"]));
    let issuers = config["issuers"].as_array().unwrap();
    let shared = json!({"issuer": SHARING, "algorithms": ["HS256"], "audience": ["other", "duck"]});
    assert!(issuers.contains(&shared), "{issuers:?}");
    assert_eq!(issuers.len(), server.issuers.len() + 2);
    assert_eq!(get("/config", tenant).await["issuers"], Value::Null);
    let keys = get("/status", service).await["keys"].clone();
    assert_eq!(keys.as_array().unwrap().len(), server.issuers.len());
}
