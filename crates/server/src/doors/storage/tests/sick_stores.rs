//! What a worker sees when the store is slow, broken or suspicious of us.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use duck_contract::Role;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::time::Instant;

use super::super::{Kind, Settings, StoreError};
use super::rig::Rig;
use super::signer::{Reply, call};

/// A store that gives the answers of a script, one a connection, then none at all. It keeps the heads it was sent.
async fn store(script: &[&str]) -> (SocketAddr, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, asked) = (listener.local_addr().unwrap(), Arc::new(Mutex::new(Vec::new())));
    let (mut script, heads) =
        (script.iter().map(ToString::to_string).collect::<Vec<_>>().into_iter(), asked.clone());
    tokio::spawn(async move {
        let mut silent = vec![];
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut head = vec![0; 16 << 10];
            let read = stream.read(&mut head).await.unwrap();
            heads.lock().unwrap().push(String::from_utf8_lossy(&head[..read]).into_owned());
            if let Some(answer) = script.next() {
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
            silent.push(stream);
        }
    });
    (address, asked)
}

const UNAVAILABLE: &str = "HTTP/1.1 503 Slow Down\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
const FORBIDDEN: &str = "HTTP/1.1 403 Forbidden\r\nconnection: close\r\ncontent-length: 48\r\n\r\n<Error><AWSAccessKeyId>THEKEY</AWSAccessKeyId>..";
const FOUND: &str = "HTTP/1.1 200 OK\r\nconnection: close\r\nlast-modified: Sun, 29 Nov 2026 16:00:00 GMT\r\netag: \"e\"\r\ncontent-length: 5\r\n\r\nhello";
const HALF: &str = "HTTP/1.1 200 OK\r\nconnection: close\r\nlast-modified: Sun, 29 Nov 2026 16:00:00 GMT\r\netag: \"e\"\r\ncontent-length: 5\r\n\r\nhe";

async fn rig(upstream: SocketAddr) -> Rig {
    let mut settings = Settings::of(Kind::S3);
    settings.endpoint = Some(format!("http://{upstream}"));
    settings.access_key_id = Some("THEKEY".into());
    settings.secret_access_key = Some("hush".to_owned().into());
    settings.ro_access_key_id = Some("READKEY".into());
    settings.ro_secret_access_key = Some("hush".to_owned().into());
    settings.allow_http = Some(true);
    settings.probe_bucket = Some("lake".into());
    let limits = &mut settings.limits;
    (limits.first_byte_ms_max, limits.idle_ms_max, limits.probe_ms_max, limits.breaker_open_ms) =
        (400, 300, 300, 600);
    Rig::with(settings, tempfile::tempdir().unwrap(), None).await
}

async fn get(rig: &Rig, key: &str) -> (Reply, Duration) {
    let pass = rig.worker("w_a/", Role::Reader);
    let start = Instant::now();
    (call("GET", &format!("/lake/w_a/{key}"), &pass).send(rig.address).await, start.elapsed())
}

#[tokio::test]
async fn a_store_that_hangs_is_asked_once_and_then_left_alone() {
    let (upstream, asked) = store(&[]).await;
    let rig = rig(upstream).await;
    let (reply, took) = get(&rig, "x").await;
    assert_eq!(reply.status, 503);
    assert!(took >= Duration::from_millis(390) && took < Duration::from_secs(3), "{took:?}");
    let (reply, took) = get(&rig, "y").await;
    assert_eq!(reply.status, 503);
    assert!(took < Duration::from_millis(200), "{took:?}");
    assert_eq!(asked.lock().unwrap().len(), 1);
    tokio::time::sleep(Duration::from_millis(700)).await;
    let (_, took) = get(&rig, "z").await;
    assert!(took >= Duration::from_millis(390), "one request tries again: {took:?}");
    assert_eq!(asked.lock().unwrap().len(), 2);
}

#[tokio::test]
async fn a_store_that_is_not_there_is_left_alone_too() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let upstream = listener.local_addr().unwrap();
    drop(listener);
    let rig = rig(upstream).await;
    assert_eq!(get(&rig, "x").await.0.status, 503);
    let (reply, took) = get(&rig, "x").await;
    assert!(reply.status == 503 && took < Duration::from_millis(45), "no second attempt, no pause: {took:?}");
}

#[tokio::test]
async fn a_manifest_is_asked_for_until_it_comes_whole() {
    let (upstream, asked) = store(&[UNAVAILABLE, HALF, UNAVAILABLE, FOUND]).await;
    let rig = rig(upstream).await;
    let (reply, _) = get(&rig, "m.avro").await;
    assert_eq!((reply.status, reply.text().as_str()), (200, "hello"), "{}", reply.head);
    assert_eq!(asked.lock().unwrap().len(), 4);
}

#[tokio::test]
async fn a_manifest_is_asked_for_even_of_a_store_that_just_hung() {
    let (upstream, _) = store(&["", FOUND, FOUND]).await;
    let rig = rig(upstream).await;
    assert_eq!(get(&rig, "x").await.0.status, 503);
    assert_eq!(get(&rig, "m.avro").await.0.text(), "hello");
    assert_eq!(get(&rig, "x").await.0.text(), "hello", "its answer shows that the store is back");
}

#[tokio::test]
async fn other_objects_are_asked_for_twice_at_most() {
    let (upstream, asked) = store(&[UNAVAILABLE, UNAVAILABLE, FOUND]).await;
    let rig = rig(upstream).await;
    let (reply, _) = get(&rig, "x").await;
    assert_eq!(reply.status, 503);
    assert_eq!(asked.lock().unwrap().len(), 2);
    assert_eq!(get(&rig, "x").await.0.text(), "hello", "an error is no hang");
}

#[tokio::test]
async fn a_body_that_stops_is_cut_and_counts_as_a_hang() {
    let (upstream, _) = store(&[HALF]).await;
    let rig = rig(upstream).await;
    let (reply, took) = get(&rig, "x").await;
    assert_eq!((reply.status, reply.text().as_str()), (200, "he"));
    assert!(reply.head.contains("content-length: 5"), "so the worker notices: {}", reply.head);
    assert!(took < Duration::from_secs(3), "{took:?}");
    let (reply, took) = get(&rig, "x").await;
    assert!(reply.status == 503 && took < Duration::from_millis(200), "{took:?}");
}

#[tokio::test]
async fn our_key_is_our_affair() {
    let (upstream, _) = store(&[FORBIDDEN, FORBIDDEN]).await;
    let rig = rig(upstream).await;
    let (reply, _) = get(&rig, "x").await;
    assert_eq!(reply.status, 500);
    let shown = format!("{} {}", reply.head, reply.text());
    assert!(!shown.contains("THEKEY") && !shown.contains(&upstream.to_string()), "{shown}");
    let refused = rig.store.probe().await;
    assert!(matches!(&refused, Err(StoreError::Upstream(text)) if !text.contains("THEKEY")), "{refused:?}");
}

#[tokio::test]
async fn readers_use_the_key_that_can_only_read() {
    let (upstream, asked) = store(&[FOUND, FOUND]).await;
    let rig = rig(upstream).await;
    get(&rig, "x").await;
    let writer = rig.worker("w_a/", Role::Writer);
    call("GET", "/lake/w_a/x", &writer).send(rig.address).await;
    let asked = asked.lock().unwrap();
    assert!(asked[0].contains("Credential=READKEY/") && asked[1].contains("Credential=THEKEY/"), "{asked:?}");
}

#[tokio::test]
async fn a_probe_of_a_silent_store_ends_in_time() {
    let (upstream, _) = store(&[]).await;
    let rig = rig(upstream).await;
    assert!(matches!(rig.store.probe().await, Err(StoreError::Deadline(300))));
}

#[tokio::test]
async fn a_slow_upload_is_given_time_and_a_hanging_one_is_not() {
    let (upstream, _) = store(&[]).await;
    let rig = rig(upstream).await;
    let writer = rig.worker("w_a/", Role::Writer);
    let start = Instant::now();
    let reply = call("PUT", "/lake/w_a/x", &writer).body(vec![0; 256 << 10]).send(rig.address).await;
    // 400 ms, and half a second for 256 KiB at 512 KiB/s.
    assert_eq!(reply.status, 503);
    assert!(start.elapsed() >= Duration::from_millis(890), "{:?}", start.elapsed());
}
