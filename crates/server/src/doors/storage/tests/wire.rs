//! The same visitors, below what any client library would send: replays, and requests with more than one reading.

use std::time::Duration;

use futures::future::join_all;

use super::super::Kind;
use super::refused::{Scene, refused};
use super::signer::{Call, call, exchange};

/// A door that waits for more, as one should for half a request, is not waited for.
const LONG: Duration = Duration::from_millis(700);

impl Scene {
    /// Sends bytes that hold one request for whoever reads them right, and says how many were answered, and how the first was.
    async fn told(&self, bytes: &[u8]) -> (usize, u16) {
        let answer = exchange(self.rig.address, bytes, LONG).await;
        let text = String::from_utf8_lossy(&answer).into_owned();
        assert!(!text.contains("SECRET"), "{text}");
        let status = text.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
        (text.matches("HTTP/1.1 ").count(), status)
    }

    /// All of them at once: a door may hang up without a word, or wait; it may not answer well, or twice.
    async fn none_is_served(&self, all: Vec<(String, Vec<u8>)>) {
        let told = all.iter().map(|(_, bytes)| self.told(bytes));
        for ((what, _), (answers, status)) in all.iter().zip(join_all(told).await) {
            assert!(
                answers <= 1 && (status == 0 || matches!(status, 400..=599)),
                "{what}: {answers} {status}"
            );
        }
    }

    async fn stored(&self, key: &str) -> u16 {
        self.send(&call("GET", &format!("/lake/w_a/{key}"), &self.reader)).await.status
    }
}

/// A well-signed head, with a line put in after its first one or some text replaced.
fn changed(head: &[u8], from: &str, to: &str) -> Vec<u8> {
    let head = String::from_utf8(head.to_vec()).unwrap();
    assert!(head.contains(from), "{from}");
    head.replacen(from, to, 1).into_bytes()
}

#[tokio::test]
async fn a_signature_is_good_for_the_request_that_it_signs() {
    for kind in [Kind::Local, Kind::Memory] {
        let scene = Scene::of(kind).await;
        let door = scene.rig.address;
        let theirs = call("GET", "/lake/w_b/x", &scene.neighbour);
        let borrowed = Some(theirs.authorization(door));
        let with = |call: Call| Call { authorization: borrowed.clone(), ..call };
        // Another's signature: on another path, with another method, body or query, under another's key id.
        refused(&scene, with(call("GET", "/lake/w_a/x", &scene.writer))).await;
        refused(&scene, with(call("PUT", "/lake/w_b/x", &scene.writer).body("evil"))).await;
        refused(&scene, with(call("DELETE", "/lake/w_b/x", &scene.writer))).await;
        refused(&scene, with(call("GET", "/lake/?list-type=2&prefix=w_b%2F", &scene.writer))).await;
        let renamed = theirs.authorization(door).replace(&theirs.key_id, &scene.writer.keys().access_key_id);
        refused(&scene, Call { authorization: Some(renamed), ..call("GET", "/lake/w_b/x", &scene.writer) })
            .await;
        // One's own: of another service, region, day, or over fewer headers.
        let own = call("GET", "/lake/w_a/x", &scene.reader);
        let text = own.authorization(door);
        for (from, to) in [
            ("/s3/aws4_request", "/sts/aws4_request"),
            ("/us-east-1/", "/eu-west-1/"),
            ("/aws4_request", "/aws4_request/x"),
            ("host;x-amz-content-sha256;", "x-amz-content-sha256;"),
            ("Signature=", "Signature=0"),
            ("Signature=", "Signature=,Signature="),
            ("AWS4-HMAC-SHA256 ", "AWS4-HMAC-SHA256  x, "),
            ("AWS4-HMAC-SHA256 ", "AWS4-ECDSA-P256-SHA256 "),
            ("AWS4-HMAC-SHA256 ", "aws4-hmac-sha256 "),
            ("Credential=", "Credential=/"),
        ] {
            assert!(text.contains(from));
            let text = text.replacen(from, to, 1);
            refused(&scene, Call { authorization: Some(text), ..own.clone() }).await;
        }
        // The very same request twice is the same worker's same wish; what is not signed may differ and shows nothing new.
        assert_eq!(scene.send(&own).await.text(), "own");
        assert_eq!(scene.send(&own).await.text(), "own");
        assert_eq!(scene.send(&own.clone().header("range", "bytes=0-1")).await.text(), "ow");
        let unsigned =
            Call { hash: Some("UNSIGNED-PAYLOAD".into()), ..call("PUT", "/lake/w_a/u", &scene.writer) };
        assert_eq!(scene.send(&unsigned.body("x")).await.status, 200);
        scene.neighbour_unharmed().await;
    }
}

#[tokio::test]
async fn an_upload_is_ended_by_its_own_worker_only() {
    for kind in [Kind::Local, Kind::Memory] {
        let scene = Scene::of(kind).await;
        let begun = scene.send(&call("POST", "/lake/w_b/y?uploads", &scene.neighbour)).await;
        let id = begun.element("UploadId").unwrap();
        let part = scene
            .send(
                &call("PUT", &format!("/lake/w_b/y?partNumber=1&uploadId={id}"), &scene.neighbour)
                    .body("part"),
            )
            .await;
        assert_eq!(part.status, 200);
        let etag = part.head.lines().find_map(|line| line.strip_prefix("etag: ")).unwrap();
        let list = format!(
            "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>{etag}</ETag></Part></CompleteMultipartUpload>"
        );
        let writer = &scene.writer;
        for (method, target) in [
            ("POST", format!("/lake/w_a/y?uploadId={id}")),
            ("POST", format!("/lake/w_b/y?uploadId={id}")),
            ("POST", format!("/lake/w_a/y?uploadId={id}&uploadId={id}")),
            ("DELETE", format!("/lake/w_a/y?uploadId={id}")),
            ("GET", format!("/lake/w_a/y?uploadId={id}&max-parts=1")),
            ("PUT", format!("/lake/w_a/y?uploadId={id}")),
        ] {
            refused(&scene, call(method, &target, writer).body(list.clone())).await;
        }
        let ended = call("POST", &format!("/lake/w_b/y?uploadId={id}"), &scene.neighbour).body(list);
        assert_eq!(scene.send(&ended).await.status, 200, "its own worker can");
        assert_eq!(scene.stored("y").await, 404);
    }
}

#[tokio::test]
async fn a_page_s_token_opens_no_other_list() {
    for kind in [Kind::Local, Kind::Memory] {
        let scene = Scene::of(kind).await;
        for n in 0..3 {
            let put = call("PUT", &format!("/lake/w_b/l/{n}"), &scene.neighbour).body("x");
            assert_eq!(scene.send(&put).await.status, 200);
        }
        let first = call("GET", "/lake/?list-type=2&max-keys=1&prefix=w_b%2F", &scene.neighbour);
        let token = scene.send(&first).await.element("NextContinuationToken").unwrap();
        let token = token.bytes().fold(String::new(), |text, byte| text + &format!("%{byte:02X}"));
        for words in [
            format!("continuation-token={token}&list-type=2&prefix=w_a%2F"),
            "continuation-token=w_b%2F&list-type=2&prefix=w_a%2F".into(),
            "continuation-token=..%2F..%2Fw_b&list-type=2&prefix=w_a%2F".into(),
            "list-type=2&prefix=w_a%2F&start-after=w_b%2F".into(),
            "list-type=2&prefix=w_a%2F&start-after=w_".into(),
            "delimiter=%2F&list-type=2&prefix=w_a%2F".into(),
        ] {
            let reply = scene.send(&call("GET", &format!("/lake/?{words}"), &scene.reader)).await;
            assert!([200, 400, 403, 501].contains(&reply.status), "{words}: {}", reply.text());
            assert!(
                !reply.text().contains("w_b/l") && !reply.text().contains("<Key>w_b"),
                "{words}: {}",
                reply.text()
            );
        }
    }
}

/// One request for whoever reads it right is one answer, and what hides in it does not run. The inner one is signed, too.
#[tokio::test]
async fn nothing_hides_in_a_request() {
    let scene = Scene::of(Kind::Memory).await;
    let door = scene.rig.address;
    let (writer, reader) = (&scene.writer, &scene.reader);
    let inner =
        [call("PUT", "/lake/w_a/hidden", writer).body("x").head(door, "close"), b"x".to_vec()].concat();
    let put = |target: &str| call("PUT", target, writer).body(inner.clone());
    let get = call("GET", "/lake/w_a/x", reader).head(door, "keep-alive");
    let length = format!("content-length: {}", inner.len());
    let own = put("/lake/w_a/outer").head(door, "close");

    let mut all = Vec::new();
    // Lengths of which there are two readings, and codings of which there are many.
    for line in [
        "transfer-encoding: chunked",
        "Transfer-Encoding: xchunked",
        "transfer-encoding: chunked, identity",
        "transfer-encoding: identity, chunked",
        "transfer-encoding:\tchunked",
        "transfer-encoding: \"chunked\"",
        "transfer-encoding : chunked",
        " transfer-encoding: chunked",
        "transfer-encoding:\r\n chunked",
        "transfer-encoding: chunked\r\ntransfer-encoding: identity",
        "x: y\rtransfer-encoding: chunked",
        "x: y\0",
        "content-length: 0",
        "content-length: 5",
        "content-length: +5",
        "content-length: -1",
        "content-length: 0x5",
        "content-length: 5, 5",
        "content-length: 5 5",
        "content-length: 18446744073709551621",
        "content-length:",
        "content length: 5",
        "x: a\r\n folded: b",
        "te: trailers\r\ntrailer: authorization\r\ntransfer-encoding: chunked",
    ] {
        let beside = changed(&own, "\r\n", &format!("\r\n{line}\r\n"));
        all.push((format!("{line:?}"), [beside, inner.clone()].concat()));
        all.push((format!("{line:?} alone"), [changed(&own, &length, line), inner.clone()].concat()));
    }
    // Chunks, with and without words of their own.
    for chunks in [
        "5;x=\"\r\nGET / HTTP/1.1\r\n\"\r\nhello\r\n0\r\n\r\n",
        "5\r\nhello\r\n0\r\nx: y\r\n\r\n",
        "0\r\n\r\n",
    ] {
        let chunked = changed(&own, &length, "transfer-encoding: chunked");
        all.push((format!("{chunks:?}"), [chunked, chunks.into(), inner.clone()].concat()));
    }
    scene.none_is_served(all).await;
    // A refused request's body is a body, also where the connection would live on.
    for target in ["/lake/w_b/evil", "/lake/w_a/../x", "/lake/w_a/x?acl", "/lake/w_ab/x"] {
        let bytes = [put(target).head(door, "keep-alive"), inner.clone()].concat();
        let (answers, status) = scene.told(&bytes).await;
        assert!(answers == 1 && matches!(status, 400..=404), "{target}: {answers} {status}");
    }
    // So is that of a request which has no use for one.
    let with_body = changed(&get, "\r\n\r\n", &format!("\r\n{length}\r\n\r\n"));
    let (answers, _) =
        scene.told(&[changed(&with_body, "keep-alive", "close"), inner.clone()].concat()).await;
    assert!(answers <= 1);
    assert_eq!((scene.stored("hidden").await, scene.stored("outer").await), (404, 404));

    // Two that stand one behind the other are two, each looked at by itself.
    let foreign = call("GET", "/lake/w_b/x", reader).head(door, "close");
    assert_eq!(scene.told(&[get.clone(), foreign.clone()].concat()).await, (2, 200));
    let refusal = [call("GET", "/lake/w_a/x?acl", reader).head(door, "keep-alive"), foreign].concat();
    assert_eq!(scene.told(&refusal).await, (2, 400));
    scene.neighbour_unharmed().await;
}

#[tokio::test]
async fn a_target_is_a_path() {
    let scene = Scene::of(Kind::Memory).await;
    let door = scene.rig.address;
    let head = call("GET", "/lake/w_a/x", &scene.reader).head(door, "close");
    let mut all = Vec::new();
    for line in [
        "GET http://127.0.0.1/lake/w_a/x HTTP/1.1",
        "GET //lake/w_a/x HTTP/1.1",
        "GET lake/w_a/x HTTP/1.1",
        "GET * HTTP/1.1",
        "GET ?/lake/w_a/x HTTP/1.1",
        "GET  /lake/w_a/x HTTP/1.1",
        "GET /lake/w_a/x  HTTP/1.1",
        "GET /lake/w_a/x HTTP/1.1 x",
        "GET /lake/w_a/ x HTTP/1.1",
        "GET /lake/w_a/x HTTP/2.0",
        "GET /lake/w_a/x HTTP/9",
        "GET /lake/w_a/x",
        "GET\t/lake/w_a/x HTTP/1.1",
        "CONNECT 127.0.0.1:80 HTTP/1.1",
        "OPTIONS * HTTP/1.1",
        "TRACE /lake/w_a/x HTTP/1.1",
        "get /lake/w_a/x HTTP/1.1",
        "GE\0T /lake/w_a/x HTTP/1.1",
        "PRI * HTTP/2.0",
    ] {
        all.push((format!("{line:?}"), changed(&head, "GET /lake/w_a/x HTTP/1.1", line)));
    }
    for (from, to) in [
        ("host: ", "host: x\r\nhost: "),
        ("authorization: ", "authorization: x\r\nauthorization: "),
        ("x-amz-date: ", "x-amz-date: 20260101T000000Z\r\nx-amz-date: "),
        ("x-amz-content-sha256: ", "x-amz-content-sha256: UNSIGNED-PAYLOAD\r\nx-amz-content-sha256: "),
        ("connection: ", "x-amz-date : 1\r\nconnection: "),
        ("\r\n\r\n", &format!("{}\r\n\r\n", "\r\nx: y".repeat(200))),
        ("\r\n\r\n", &format!("\r\nx: {}\r\n\r\n", "y".repeat(1 << 20))),
    ] {
        all.push((format!("{from:?}"), changed(&head, from, to)));
    }
    scene.none_is_served(all).await;
    assert_eq!(scene.told(&head).await, (1, 200), "as it was it is good");
}
