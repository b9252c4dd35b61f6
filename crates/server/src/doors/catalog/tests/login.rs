//! Our own login at the catalog.

use std::sync::atomic::{AtomicBool, Ordering};

use super::fake::say;
use super::*;

const SECRET: &str = "hunter2-hush";

fn with_login(settings: &mut Settings, origin: &str) {
    settings.oauth2_uri = Some(format!("{origin}/token"));
    settings.client_id = Some("duck".into());
    settings.client_secret = Some(crate::secret::Secret::new(SECRET));
    settings.scope = Some("lakekeeper".into());
}

/// An identity provider that gives `token-0`, `token-1`, …
fn grant(number: usize, lifetime_s: u64) -> Act {
    say(
        200,
        format!(r#"{{"access_token":"token-{number}","expires_in":{lifetime_s},"token_type":"bearer"}}"#),
    )
}

#[tokio::test]
async fn the_catalog_sees_our_token_and_the_worker_never_does() {
    let world = World::start(with_login, |seen, before| {
        if seen.is("POST", "/token") {
            return grant(before, 3_600);
        }
        say(
            400,
            format!(
                r#"{{"error":{{"message":"bad {0}","type":"T","code":400}},"echo":"{0}"}}"#,
                seen.bearer.as_deref().unwrap_or("")
            ),
        )
    })
    .await;
    let mut told = Vec::new();
    for path in [TABLE, "/v1/config?warehouse=lake", "/v1/lake/namespaces"] {
        told.push(world.get(&world.reader, path).await.1);
    }
    told.push(world.post(&world.writer, COMMIT, commit()).await.1);
    told.push(format!("{:?}", world.upstream.settings()));
    for text in told {
        assert!(!text.contains("token-0") && !text.contains(SECRET), "{text}");
    }
    let asked = world.fake.seen("POST", "/token");
    assert_eq!(asked.len(), 1);
    assert!(asked[0].body.contains("client_credentials") && asked[0].body.contains(SECRET));
    assert!(world.fake.seen("GET", TABLE).iter().all(|seen| seen.bearer.as_deref() == Some("token-0")));
}

#[tokio::test]
async fn many_who_need_the_first_token_ask_once() {
    let world = World::start(with_login, |seen, before| {
        if !seen.is("POST", "/token") {
            return say(200, "{}");
        }
        let Act::Say(status, body) = grant(before, 3_600) else { unreachable!() };
        Act::Late(Duration::from_millis(50), status, body)
    })
    .await;
    let all = (0..16).map(|_| world.get(&world.writer, TABLE));
    assert!(futures::future::join_all(all).await.iter().all(|(status, _)| *status == 200));
    assert_eq!(world.fake.seen("POST", "/token").len(), 1);
}

#[tokio::test]
async fn a_token_is_renewed_before_its_end_and_nobody_waits_for_it() {
    let world = World::start(with_login, |seen, before| match (seen.is("POST", "/token"), before) {
        (true, 0) => grant(0, 1),
        (true, _) => {
            let Act::Say(status, body) = grant(before, 3_600) else { unreachable!() };
            Act::Late(Duration::from_millis(200), status, body)
        }
        _ => say(200, "{}"),
    })
    .await;
    assert_eq!(world.get(&world.reader, TABLE).await.0, 200);
    tokio::time::sleep(Duration::from_millis(550)).await;
    // Half of its second is over: this call starts the renewal and goes on with the old token.
    assert_eq!(world.get(&world.reader, TABLE).await.0, 200);
    let bearers =
        || world.fake.seen("GET", TABLE).into_iter().filter_map(|seen| seen.bearer).collect::<Vec<_>>();
    assert_eq!(bearers(), ["token-0", "token-0"]);
    until(|| world.fake.seen("POST", "/token").len() == 2).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(world.get(&world.reader, TABLE).await.0, 200);
    assert_eq!(bearers()[2], "token-1");
}

#[tokio::test]
async fn the_old_token_serves_until_its_end_while_the_provider_is_down() {
    let world = World::start(with_login, |seen, before| match (seen.is("POST", "/token"), before) {
        (true, 0) => grant(0, 2),
        (true, _) => Act::Cut,
        _ => say(200, "{}"),
    })
    .await;
    assert_eq!(world.get(&world.reader, TABLE).await.0, 200);
    tokio::time::sleep(Duration::from_millis(1_200)).await;
    for _ in 0..5 {
        assert_eq!(world.get(&world.reader, TABLE).await.0, 200);
    }
    assert!(world.fake.seen("POST", "/token").len() <= 3);
    tokio::time::sleep(Duration::from_millis(900)).await;
    let (status, body) = world.get(&world.reader, TABLE).await;
    assert_eq!((status, body.contains("ServiceUnavailableException")), (503, true), "{body}");
}

#[tokio::test]
async fn a_refused_token_is_renewed_once_and_the_call_repeated() {
    let world = World::start(with_login, |seen, before| match seen.bearer.as_deref() {
        None => grant(before, 3_600),
        Some("token-0") => say(401, "{}"),
        Some(_) => say(204, ""),
    })
    .await;
    assert_eq!(world.get(&world.reader, TABLE).await.0, 204);
    assert_eq!(world.post(&world.writer, COMMIT, commit()).await.0, 204);
    assert_eq!(world.fake.seen("POST", "/token").len(), 2);
}

#[tokio::test]
async fn a_worker_is_never_told_401_because_of_us() {
    let world = World::start(with_login, |seen, before| match seen.bearer.as_deref() {
        None => grant(before, 3_600),
        Some(_) => say(401, r#"{"error":{"message":"who?","type":"Unauthorized","code":401}}"#),
    })
    .await;
    for _ in 0..5 {
        assert_eq!(world.get(&world.reader, TABLE).await.0, 502);
        assert_eq!(world.post(&world.writer, COMMIT, commit()).await.0, 502);
    }
    // Nor is the identity provider flooded.
    assert!(world.fake.seen("POST", "/token").len() <= 4);
}

#[tokio::test]
async fn refused_credentials_are_told_apart_from_a_provider_that_is_down() {
    let down = Arc::new(AtomicBool::new(false));
    let switch = down.clone();
    let world = World::start(with_login, move |_, _| {
        if switch.load(Ordering::Relaxed) { say(503, "") } else { say(401, r#"{"error":"invalid_client"}"#) }
    })
    .await;
    assert!(matches!(world.upstream.prefix_of("w_a").await, Err(CatalogError::LoginRefused { .. })));
    down.store(true, Ordering::Relaxed);
    assert!(matches!(world.upstream.prefix_of("w_a").await, Err(CatalogError::Unavailable { .. })));
}
