//! What a hostile worker tries, one line a case. Both roles of warehouse `w_a`; the neighbour is `w_b`.

use std::time::{Duration, SystemTime};

use duck_contract::Role;

use super::super::Kind;
use super::rig::Rig;
use super::signer::{Call, Reply, call, call_with};
use crate::doors::{BoundPass, Place, Visitor};

const KINDS: [Kind; 2] = [Kind::Local, Kind::Memory];

pub(super) struct Scene {
    pub(super) rig: Rig,
    pub(super) reader: BoundPass,
    pub(super) writer: BoundPass,
    pub(super) neighbour: BoundPass,
}

impl Scene {
    pub(super) async fn of(kind: Kind) -> Self {
        let rig = Rig::of(kind).await;
        let (reader, writer) = (rig.worker("w_a/", Role::Reader), rig.worker("w_a/", Role::Writer));
        let scene = Self { neighbour: rig.worker("w_b/", Role::Writer), rig, reader, writer };
        assert_eq!(scene.send(&call("PUT", "/lake/w_a/x", &scene.writer).body("own")).await.status, 200);
        assert_eq!(
            scene.send(&call("PUT", "/lake/w_b/x", &scene.neighbour).body("SECRET")).await.status,
            200
        );
        scene
    }

    pub(super) async fn send(&self, call: &Call) -> Reply {
        call.send(self.rig.address).await
    }

    /// The neighbour's object is as it was.
    pub(super) async fn neighbour_unharmed(&self) {
        assert_eq!(self.send(&call("GET", "/lake/w_b/x", &self.neighbour)).await.text(), "SECRET");
        let list = self.send(&call("GET", "/lake/?list-type=2&prefix=w_b%2F", &self.neighbour)).await;
        assert_eq!(list.text().matches("<Key>").count(), 1, "{}", list.text());
        assert!(self.rig.ledger().is_empty());
    }
}

/// Refused by us in so many words, and without a byte of the neighbour's. Signed both ways a client could sign.
pub(super) async fn refused(scene: &Scene, call: Call) {
    for raw in [false, true] {
        let call = Call { raw, ..call.clone() };
        let reply = scene.send(&call).await;
        assert!(matches!(reply.status, 400 | 403 | 404 | 405 | 501), "{} {}", reply.head, reply.text());
        assert!(!reply.text().contains("SECRET"), "{}", reply.text());
    }
}

#[tokio::test]
async fn a_worker_without_a_warehouse_reaches_nothing() {
    for kind in KINDS {
        let scene = Scene::of(kind).await;
        let spare = scene.rig.passes.issue();
        for target in ["/lake/w_a/x", "/lake/w_b/x", "/lake/x", "/lake/?list-type=2&prefix=w_a%2F", "/"] {
            refused(&scene, call_with("GET", target, &spare.keys)).await;
        }
        refused(&scene, call_with("PUT", "/lake/w_a/y", &spare.keys).body("own")).await;
        // The same keys, once it is known for whom they are.
        let place = Place { bucket: "lake".into(), prefix: "w_a/".into() };
        let bound = spare.bind(Visitor::new("w_a", place, Role::Reader));
        assert_eq!(scene.send(&call("GET", "/lake/w_a/x", &bound)).await.text(), "own");
        refused(&scene, call("GET", "/lake/w_b/x", &bound)).await;
    }
}

#[tokio::test]
async fn no_path_leads_out_of_the_warehouse() {
    for kind in KINDS {
        let scene = Scene::of(kind).await;
        for path in [
            "/lake/w_b/x",
            "/lake/w_ab/x",
            "/lake/W_A/x",
            "/lake/w_a",
            "/lake/w_a/",
            "/lake",
            "/",
            "/other/w_a/x",
            "/lake/w_a/../w_b/x",
            "/lake/w_a/%2e%2e/w_b/x",
            "/lake/w_a/%2E%2E/w_b/x",
            "/lake/w_a/.%2e/w_b/x",
            "/lake/w_a/..%2fw_b/x",
            "/lake/w_a%2f..%2fw_b%2fx",
            "/lake/w_a%2Fx",
            "/lake//w_b/x",
            "//lake/w_a/x",
            "/lake/w_a//../w_b/x",
            "/lake/./w_b/x",
            "/lake/w_a/./x",
            "/lake/w_a//x",
            "/lake/w_a/x/",
            "/lake/w_a/x/.",
            "/lake/w_a/..%5cw_b/x",
            "/lake/w_a/%5c..%5cw_b%5cx",
            "/lake/w_a/..\\w_b\\x",
            "/lake/w_a/%00",
            "/lake/w_a/x%00",
            "/lake/w_a/%0a",
            "/lake/w_a/%c0%ae%c0%ae/w_b/x",
            "/lake/w_a/%ff",
            "/lake/w_a;/../w_b/x",
            "/lake/%77_b/x",
            "/lake/w%5Fb/x",
            "/.staging/x/1",
            "/lake/w_a/%",
            "/lake/w_a/%2",
            "/lake/w_a/%u002e%u002e/w_b/x",
            "/lake/w_a/%2e",
            "/lake/w_a/x%2e%2e%2f",
            "/lake/w_a/x#/../w_b/x",
            "/lake/w_a/x%7f",
            "/lake/w_a%00/x",
            "/lake%2Fw_a/x",
            "/%6cake/w_b/x",
            "/lake/w_a/%e0%80%ae%e0%80%ae/x",
            "/lake/w_a/%f0%80%80%ae/x",
            "http://127.0.0.1/lake/w_b/x",
            "lake/w_b/x",
        ] {
            refused(&scene, call("GET", path, &scene.writer)).await;
            refused(&scene, call("PUT", path, &scene.writer).body("evil")).await;
            refused(&scene, call("DELETE", path, &scene.writer)).await;
            refused(&scene, call("POST", &format!("{path}?uploads"), &scene.writer)).await;
        }
        scene.neighbour_unharmed().await;
    }
}

#[tokio::test]
async fn dots_that_are_encoded_twice_are_plain_letters_inside() {
    for kind in KINDS {
        let scene = Scene::of(kind).await;
        let path = "/lake/w_a/%252e%252e/w_b/x";
        assert_eq!(scene.send(&call("GET", path, &scene.reader)).await.status, 404);
        assert_eq!(scene.send(&call("PUT", path, &scene.writer).body("mine")).await.status, 200);
        assert_eq!(scene.send(&call("GET", path, &scene.reader)).await.text(), "mine");
        scene.neighbour_unharmed().await;
    }
}

#[tokio::test]
async fn no_list_shows_a_neighbour() {
    for kind in KINDS {
        let scene = Scene::of(kind).await;
        for query in [
            "",
            "list-type=2",
            "list-type=2&prefix=",
            "list-type=2&prefix=w_",
            "list-type=2&prefix=w_a",
            "list-type=2&prefix=w_b%2F",
            "list-type=2&prefix=w_ab%2F",
            "list-type=2&prefix=w_a%2F..%2Fw_b%2F",
            "list-type=2&prefix=w_a/../w_b/",
            "list-type=2&prefix=w_a%2F&prefix=w_b%2F",
            "prefix=w_a%2F",
            "prefix=w_b%2F",
            "list-type=1&prefix=w_a%2F",
            "list-type=2&prefix=w_a%2F%2F",
            "list-type=2&%70refix=w_b%2F",
            "list-type=2&prefix=w_a%2F&delimiter=_",
            "list-type=2&prefix=w_a%2F&max-keys=x",
            "list-type=2&prefix=w_a%2F&prefix",
            "list-type=2&list-type=2&prefix=w_a%2F",
            "list-type=2&prefix=w_a%2f%2e%2e%2fw_b%2f",
            "list-type=2&prefix=w_a%00%2F",
            "list-type=2&prefix=w_a%5C",
            "list-type=2&Prefix=w_b%2F",
            "list-type=2&prefix=w_a%2F&fetch-owner=true",
            "list-type=2&prefix=w_a%2F&versions",
            "list-type=2&prefix=w_a%2F&x-id=ListObjectsV2",
            "list-type=2&prefix=%77_b%2F",
            "list-type=2;prefix=w_b%2F",
        ] {
            refused(&scene, call("GET", &format!("/lake/?{query}"), &scene.reader)).await;
            refused(&scene, call("GET", &format!("/lake?{query}"), &scene.writer)).await;
        }
    }
}

#[tokio::test]
async fn a_reader_cannot_change_anything() {
    for kind in KINDS {
        let scene = Scene::of(kind).await;
        let reader = &scene.reader;
        refused(&scene, call("PUT", "/lake/w_a/y", reader).body("x")).await;
        refused(&scene, call("DELETE", "/lake/w_a/x", reader)).await;
        refused(&scene, call("POST", "/lake/w_a/y?uploads", reader)).await;
        let delete = "<Delete><Object><Key>w_a/x</Key></Object></Delete>";
        refused(&scene, call("POST", "/lake/?delete", reader).body(delete)).await;
        let begun = scene.send(&call("POST", "/lake/w_a/y?uploads", &scene.writer)).await;
        let id = begun.element("UploadId").unwrap();
        refused(&scene, call("PUT", &format!("/lake/w_a/y?partNumber=1&uploadId={id}"), reader).body("x"))
            .await;
        refused(&scene, call("POST", &format!("/lake/w_a/y?uploadId={id}"), reader).body("<C/>")).await;
        refused(&scene, call("DELETE", &format!("/lake/w_a/y?uploadId={id}"), reader)).await;
        assert!(scene.rig.ledger().is_empty());
    }
}

#[tokio::test]
async fn an_upload_belongs_to_one_worker_and_one_key() {
    for kind in KINDS {
        let scene = Scene::of(kind).await;
        let (writer, twin) = (&scene.writer, scene.rig.worker("w_a/", Role::Writer));
        let id = scene
            .send(&call("POST", "/lake/w_b/y?uploads", &scene.neighbour))
            .await
            .element("UploadId")
            .unwrap();
        refused(&scene, call("PUT", &format!("/lake/w_a/y?partNumber=1&uploadId={id}"), writer).body("x"))
            .await;
        refused(&scene, call("PUT", &format!("/lake/w_b/y?partNumber=1&uploadId={id}"), writer).body("x"))
            .await;
        refused(&scene, call("DELETE", &format!("/lake/w_b/y?uploadId={id}"), writer)).await;
        let id = scene.send(&call("POST", "/lake/w_a/y?uploads", writer)).await.element("UploadId").unwrap();
        refused(&scene, call("PUT", &format!("/lake/w_a/z?partNumber=1&uploadId={id}"), writer).body("x"))
            .await;
        refused(&scene, call("PUT", &format!("/lake/w_a/y?partNumber=1&uploadId={id}"), &twin).body("x"))
            .await;
        refused(&scene, call("PUT", &format!("/lake/w_a/y?partNumber=0&uploadId={id}"), writer).body("x"))
            .await;
        refused(
            &scene,
            call("PUT", &format!("/lake/w_a/y?partNumber=10001&uploadId={id}"), writer).body("x"),
        )
        .await;
        refused(&scene, call("PUT", "/lake/w_a/y?partNumber=1&uploadId=..%2F..", writer).body("x")).await;
        refused(&scene, call("GET", &format!("/lake/w_a/y?uploadId={id}"), writer)).await;
        refused(&scene, call("GET", "/lake/?uploads", writer)).await;
    }
}

#[tokio::test]
async fn a_list_of_deletions_is_all_or_nothing() {
    for kind in KINDS {
        let scene = Scene::of(kind).await;
        for (own, foreign) in
            [("w_a/x", "w_b/x"), ("w_a/x", "w_a/../w_b/x"), ("w_a/x", ""), ("w_a/x", "w_ab/x")]
        {
            let xml = format!(
                "<Delete><Object><Key>{own}</Key></Object><Object><Key>{foreign}</Key></Object></Delete>"
            );
            refused(&scene, call("POST", "/lake/?delete", &scene.writer).body(xml)).await;
        }
        let entity = "<!DOCTYPE x [<!ENTITY e SYSTEM \"file:///etc/passwd\">]><Delete><Object><Key>&e;</Key></Object></Delete>";
        refused(&scene, call("POST", "/lake/?delete", &scene.writer).body(entity)).await;
        assert!(scene.rig.ledger().is_empty());
    }
}

#[tokio::test]
async fn only_a_signature_of_now_with_a_live_pass_counts() {
    for kind in KINDS {
        let scene = Scene::of(kind).await;
        let good = call("GET", "/lake/w_a/x", &scene.reader);
        assert_eq!(scene.send(&good).await.text(), "own");
        let ago = |seconds| SystemTime::now() - Duration::from_secs(seconds);
        refused(&scene, Call { secret: "guess".into(), ..good.clone() }).await;
        refused(&scene, Call { key_id: "DUCK0".into(), ..good.clone() }).await;
        refused(&scene, Call { key_id: scene.neighbour.keys().access_key_id.clone(), ..good.clone() }).await;
        refused(&scene, Call { date: ago(120), ..good.clone() }).await;
        refused(&scene, Call { date: SystemTime::now() + Duration::from_mins(2), ..good.clone() }).await;
        refused(&scene, Call { authorization: Some(String::new()), ..good.clone() }).await;
        let second_version = format!("AWS {}:c2lnbmF0dXJl", scene.reader.keys().access_key_id);
        refused(&scene, Call { authorization: Some(second_version), ..good.clone() }).await;
        let other = "AWS4-HMAC-SHA256 Credential=x/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=00";
        refused(&scene, good.clone().header("authorization", other)).await;
        refused(&scene, call("GET", "/lake/w_a/x", &scene.neighbour)).await;
        let lost = scene.rig.worker("w_a/", Role::Writer);
        let of_the_lost = call("GET", "/lake/w_a/x", &lost);
        assert_eq!(scene.send(&of_the_lost).await.status, 200);
        drop(lost);
        refused(&scene, of_the_lost).await;
    }
}

#[tokio::test]
async fn a_presigned_url_opens_nothing() {
    let scene = Scene::of(Kind::Memory).await;
    let id = &scene.reader.keys().access_key_id;
    for query in [
        "X-Amz-Signature=abc".to_owned(),
        format!(
            "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential={id}%2F20261129%2Fus-east-1%2Fs3%2Faws4_request&X-Amz-Date=20261129T000000Z&X-Amz-Expires=9&X-Amz-SignedHeaders=host&X-Amz-Signature=abc"
        ),
        format!("AWSAccessKeyId={id}&Expires=9999999999&Signature=abc"),
    ] {
        let target = format!("/lake/w_a/x?{query}");
        refused(&scene, call("GET", &target, &scene.reader)).await;
        refused(&scene, Call { authorization: Some(String::new()), ..call("GET", &target, &scene.reader) })
            .await;
    }
}

#[tokio::test]
async fn a_body_is_what_was_signed() {
    for kind in KINDS {
        let scene = Scene::of(kind).await;
        let put = call("PUT", "/lake/w_a/new", &scene.writer).body("evil");
        refused(&scene, Call { hash: Some("0".repeat(64)), ..put.clone() }).await;
        refused(&scene, Call { hash: Some("STREAMING-AWS4-HMAC-SHA256-PAYLOAD".into()), ..put.clone() })
            .await;
        refused(&scene, Call { hash: Some("STREAMING-UNSIGNED-PAYLOAD-TRAILER".into()), ..put.clone() })
            .await;
        refused(&scene, put.clone().header("content-length", "2")).await;
        refused(&scene, put.clone().header("transfer-encoding", "chunked")).await;
        assert_eq!(
            scene.send(&call("GET", "/lake/w_a/new", &scene.reader)).await.status,
            404,
            "nothing was stored"
        );
    }
}

#[tokio::test]
async fn what_is_not_understood_is_refused() {
    let scene = Scene::of(Kind::Memory).await;
    let writer = &scene.writer;
    for word in [
        "acl",
        "tagging",
        "versioning",
        "versionId=1",
        "versions",
        "policy",
        "location",
        "select&select-type=2",
        "torrent",
        "attributes",
        "restore",
        "retention",
        "legal-hold",
        "partNumber=1",
        "response-content-type=text%2Fhtml",
        "cors",
        "website",
        "lifecycle",
        "encryption",
        "replication",
        "x-id=GetObject",
    ] {
        refused(&scene, call("GET", &format!("/lake/w_a/x?{word}"), writer)).await;
        refused(&scene, call("PUT", &format!("/lake/w_a/x?{word}"), writer).body("x")).await;
        refused(&scene, call("GET", &format!("/lake/?{word}"), writer)).await;
        refused(&scene, call("PUT", &format!("/lake/?{word}"), writer).body("x")).await;
        refused(&scene, call("DELETE", &format!("/lake/?{word}"), writer)).await;
    }
    let copy = |name: &str| call("PUT", "/lake/w_a/y", writer).body("x").header(name, "/lake/w_b/x");
    refused(&scene, copy("x-amz-copy-source")).await;
    refused(&scene, copy("x-amz-copy-source-range")).await;
    refused(&scene, copy("if-none-match")).await;
    refused(&scene, copy("x-amz-security-token")).await;
    refused(
        &scene,
        call("POST", "/lake/", writer).body("x").header("content-type", "multipart/form-data; boundary=b"),
    )
    .await;
    let two_kinds = call("GET", "/lake/w_a/x", writer).header("content-type", "text/plain");
    refused(&scene, two_kinds.header("content-type", "multipart/form-data; boundary=b")).await;
    refused(&scene, call("OPTIONS", "/lake/w_a/x", writer)).await;
    refused(&scene, call("PATCH", "/lake/w_a/x", writer)).await;
    refused(&scene, call("PUT", "/lake", writer)).await;
    refused(&scene, call("DELETE", "/lake", writer)).await;
    let virtual_host = call("GET", "/w_b/x", writer).header("host", "lake.localhost");
    refused(&scene, virtual_host).await;
    assert_eq!(scene.send(&call("GET", "/lake/w_a/x", writer)).await.text(), "own");
}
