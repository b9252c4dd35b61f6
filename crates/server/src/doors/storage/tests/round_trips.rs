//! What a worker may do works as S3 does, whatever the backend.

use std::time::Duration;

use duck_contract::Role;
use futures::TryStreamExt;
use object_store::path::Path;
use object_store::{ObjectStoreExt, PutPayload, WriteMultipart};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::super::{Kind, ServeError, Settings};
use super::rig::{Rig, noise};
use super::signer::call;

const KINDS: [Kind; 3] = [Kind::Local, Kind::Memory, Kind::S3];

async fn begin(rig: &Rig, pass: &crate::doors::BoundPass, key: &str) -> String {
    let reply = call("POST", &format!("/lake/{key}?uploads"), pass).send(rig.address).await;
    reply.element("UploadId").expect("an upload id")
}

#[tokio::test]
async fn what_was_put_is_read_back() {
    for kind in KINDS {
        let rig = Rig::of(kind).await;
        let pass = rig.worker("w_a/", Role::Writer);
        let (client, bytes) = (rig.client(&pass), noise(3_000_000));
        for key in ["w_a/x.parquet", "w_a/p=1%3D2?#&+/ü 1.parquet", "w_a/empty"] {
            let (key, bytes) =
                (Path::parse(key).unwrap(), if key.ends_with('y') { vec![] } else { bytes.clone() });
            client.put(&key, PutPayload::from(bytes.clone())).await.unwrap();
            assert_eq!(client.head(&key).await.unwrap().size, bytes.len() as u64, "{kind:?} {key}");
            assert!(client.get(&key).await.unwrap().bytes().await.unwrap() == bytes, "{kind:?} {key}");
        }
        assert!(matches!(
            client.head(&Path::from("w_a/none")).await,
            Err(object_store::Error::NotFound { .. })
        ));
        let traffic = rig.door.traffic(&pass.keys().access_key_id).unwrap();
        assert_eq!((traffic.bytes_in, traffic.bytes_out), (6_000_000, 6_000_000), "{kind:?}");
    }
}

#[tokio::test]
async fn what_is_there_is_never_written_over() {
    for kind in KINDS {
        let rig = Rig::of(kind).await;
        let pass = rig.worker("w_a/", Role::Writer);
        let (client, key) = (rig.client(&pass), Path::from("w_a/x.parquet"));
        client.put(&key, PutPayload::from_static(b"old")).await.unwrap();
        // The same once more is what a client sends whose first answer was lost.
        client.put(&key, PutPayload::from_static(b"old")).await.unwrap();
        for other in [b"new".as_slice(), b"longer", b""] {
            assert!(client.put(&key, PutPayload::from(other.to_vec())).await.is_err(), "{kind:?}");
        }
        assert!(client.put_multipart(&key).await.is_err(), "{kind:?}");
        assert_eq!(client.get(&key).await.unwrap().bytes().await.unwrap(), "old", "{kind:?}");
        // Nor by an upload that was begun before, and while one is open nobody else writes there.
        let late = Path::from("w_a/late.parquet");
        let mut upload = client.put_multipart(&late).await.unwrap();
        upload.put_part(PutPayload::from_static(b"late")).await.unwrap();
        assert!(client.put(&late, PutPayload::from_static(b"now")).await.is_err(), "{kind:?}");
        assert!(client.put_multipart(&late).await.is_err(), "{kind:?}");
        if kind == Kind::S3 {
            // The store behind is a door, too, and does not let anybody in between.
            continue;
        }
        rig.store.object_store("lake").unwrap().put(&late, PutPayload::from_static(b"beside")).await.unwrap();
        assert!(upload.complete().await.is_err(), "{kind:?}");
        assert_eq!(client.get(&late).await.unwrap().bytes().await.unwrap(), "beside", "{kind:?}");
    }
}

#[tokio::test]
async fn ranges_are_those_of_http() {
    for kind in KINDS {
        let rig = Rig::of(kind).await;
        let pass = rig.worker("w_a/", Role::Writer);
        for key in ["w_a/x", "w_a/m.avro"] {
            let target = format!("/lake/{key}");
            call("PUT", &target, &pass).body("0123456789").send(rig.address).await;
            let get = async |range: &str| {
                let reply = call("GET", &target, &pass).header("range", range).send(rig.address).await;
                (reply.status, if reply.status == 206 { reply.text() } else { String::new() })
            };
            assert_eq!(get("bytes=1-3").await, (206, "123".into()), "{kind:?}");
            assert_eq!(get("bytes=8-").await, (206, "89".into()), "{kind:?}");
            assert_eq!(get("bytes=-3").await, (206, "789".into()), "{kind:?}");
            assert_eq!(get("bytes=8-99").await, (206, "89".into()), "{kind:?}");
            assert_eq!(get("bytes=10-").await, (416, String::new()), "{kind:?}");
            assert_eq!(get("bytes=99-100").await, (416, String::new()), "{kind:?}");
        }
        rig.client(&pass).put(&Path::from("w_a/empty"), PutPayload::new()).await.unwrap();
        for range in ["bytes=-3", "bytes=0-"] {
            let reply = call("GET", "/lake/w_a/empty", &pass).header("range", range).send(rig.address).await;
            assert_eq!(reply.status, 416, "{kind:?} {range}: there is no part of nothing");
        }
    }
}

#[tokio::test]
async fn lists_show_what_is_there_page_by_page() {
    for kind in KINDS {
        let rig = Rig::of(kind).await;
        let (pass, other) = (rig.worker("w_a/", Role::Writer), rig.worker("w_b/", Role::Writer));
        for key in ["w_a/t/1", "w_a/t/ü +&<2", "w_a/t/3", "w_a/u"] {
            rig.client(&pass).put(&Path::parse(key).unwrap(), PutPayload::new()).await.unwrap();
        }
        rig.client(&other).put(&Path::from("w_b/foreign"), PutPayload::new()).await.unwrap();
        let list = async |query: &str| {
            let target = format!("/lake/?list-type=2&{query}");
            let reply = call("GET", &target, &pass).send(rig.address).await;
            assert_eq!(reply.status, 200, "{kind:?} {query} {}", reply.text());
            assert!(!reply.text().contains("Key>w_b"), "{}", reply.text());
            reply
        };
        let keys = |text: String| text.matches("<Key>").count();
        assert_eq!(keys(list("prefix=w_a%2F").await.text()), 4, "{kind:?}");
        assert_eq!(keys(list("prefix=w_a%2Ft").await.text()), 3, "{kind:?}");
        assert!(list("prefix=w_a%2F&encoding-type=url").await.text().contains("w_a/t/%C3%BC%20%2B%26%3C2"));
        let folded = list("prefix=w_a%2F&delimiter=%2F").await;
        assert_eq!(
            (keys(folded.text()), folded.text().matches("<CommonPrefixes>").count()),
            (1, 1),
            "{kind:?}"
        );
        let page = list("prefix=w_a%2F&max-keys=3").await;
        assert_eq!((keys(page.text()), page.element("IsTruncated")), (3, Some("true".into())), "{kind:?}");
        let token = page.element("NextContinuationToken").unwrap();
        let rest = list(&format!("prefix=w_a%2F&max-keys=3&continuation-token={token}")).await;
        assert_eq!((keys(rest.text()), rest.element("IsTruncated")), (1, Some("false".into())), "{kind:?}");
        for outside in ["w_b%2F", "w_a%2Ft%2F1", "a", "zz"] {
            list(&format!("prefix=w_a%2F&start-after={outside}")).await;
            let token = super::super::listing::token_shown(&outside.replace("%2F", "/"));
            let target = format!("/lake/?list-type=2&prefix=w_a%2F&continuation-token={token}");
            let reply = call("GET", &target, &pass).send(rig.address).await;
            assert!(!reply.text().contains("Key>w_b"), "{kind:?} {outside} {}", reply.text());
        }
        let all: Vec<_> = rig.client(&pass).list(Some(&Path::from("w_a"))).try_collect().await.unwrap();
        assert_eq!(all.len(), 4, "{kind:?}");
    }
}

#[tokio::test]
async fn twenty_megabytes_arrive_in_parts() {
    for kind in KINDS {
        let rig = Rig::of(kind).await;
        let pass = rig.worker("w_a/", Role::Writer);
        let (client, bytes, key) = (rig.client(&pass), noise(20 << 20), Path::from("w_a/big/x.parquet"));
        let mut upload =
            WriteMultipart::new_with_chunk_size(client.put_multipart(&key).await.unwrap(), 6 << 20);
        upload.write(&bytes);
        upload.finish().await.unwrap();
        assert!(client.get(&key).await.unwrap().bytes().await.unwrap() == bytes, "{kind:?}");
    }
}

#[tokio::test]
async fn an_upload_is_its_parts_in_order_and_nothing_else() {
    for kind in KINDS {
        let rig = Rig::of(kind).await;
        let pass = rig.worker("w_a/", Role::Writer);
        let id = begin(&rig, &pass, "w_a/x").await;
        let mut tags = vec![];
        for number in [2, 1, 1] {
            let target = format!("/lake/w_a/x?partNumber={number}&uploadId={id}");
            let reply = call("PUT", &target, &pass).body(format!("part {number} ")).send(rig.address).await;
            let (_, tag) = reply.head.split_once("etag: \"").expect("an etag");
            tags.push(tag.split_once('"').unwrap().0.to_owned());
        }
        let complete = async |parts: &[(u16, &str)]| {
            let part = |(number, tag): &(u16, &str)| {
                format!("<Part><PartNumber>{number}</PartNumber><ETag>\"{tag}\"</ETag></Part>")
            };
            let xml: String = parts.iter().map(part).collect();
            let xml = format!("<CompleteMultipartUpload>{xml}</CompleteMultipartUpload>");
            let target = format!("/lake/w_a/x?uploadId={id}");
            call("POST", &target, &pass).body(xml).send(rig.address).await.status
        };
        let (one, two, replaced) = (&*tags[2], &*tags[0], &*tags[1]);
        assert_eq!(complete(&[(1, one)]).await, 400, "{kind:?} a part is missing");
        assert_eq!(complete(&[(2, two), (1, one)]).await, 400, "{kind:?} wrong order");
        assert_eq!(complete(&[(1, replaced), (2, two)]).await, 400, "{kind:?} a part that was replaced");
        assert_eq!(complete(&[(1, one), (2, two), (3, two)]).await, 400, "{kind:?} a part too many");
        assert_eq!(complete(&[(1, one), (2, two)]).await, 200, "{kind:?}");
        assert_eq!(complete(&[(1, one), (2, two)]).await, 404, "{kind:?} it is done");
        assert_eq!(call("GET", "/lake/w_a/x", &pass).send(rig.address).await.text(), "part 1 part 2 ");
    }
}

#[tokio::test]
async fn uploads_end_with_their_worker() {
    let rig = Rig::of(Kind::Local).await;
    let (pass, other) = (rig.worker("w_a/", Role::Writer), rig.worker("w_a/", Role::Writer));
    begin(&rig, &pass, "w_a/x").await;
    let kept = begin(&rig, &other, "w_a/y").await;
    let staged = || std::fs::read_dir(rig.folder.path().join("buckets/.staging")).unwrap().count();
    assert_eq!(staged(), 2);
    drop(pass);
    let gone = async {
        while staged() != 1 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), gone).await.expect("the upload is swept away");
    let target = format!("/lake/w_a/y?uploadId={kept}");
    assert_eq!(call("DELETE", &target, &other).send(rig.address).await.status, 204);
    assert_eq!(staged(), 0);
}

#[tokio::test]
async fn a_delete_is_written_down_and_not_done() {
    for kind in KINDS {
        let rig = Rig::of(kind).await;
        let pass = rig.worker("w_a/", Role::Writer);
        call("PUT", "/lake/w_a/x", &pass).body("kept").send(rig.address).await;
        assert_eq!(call("DELETE", "/lake/w_a/x", &pass).send(rig.address).await.status, 204);
        let xml = "<Delete><Object><Key>w_a/y</Key></Object><Object><Key>w_a/z</Key></Object></Delete>";
        let reply = call("POST", "/lake/?delete", &pass).body(xml).send(rig.address).await;
        assert_eq!((reply.status, reply.text().matches("<Deleted>").count()), (200, 2), "{}", reply.text());
        assert_eq!(call("GET", "/lake/w_a/x", &pass).send(rig.address).await.text(), "kept", "{kind:?}");
        let ledger = rig.ledger();
        let keys: Vec<_> = ledger.iter().map(|candidate| candidate.key.as_str()).collect();
        assert_eq!(keys, ["w_a/x", "w_a/y", "w_a/z"]);
        assert!(
            ledger.iter().all(|candidate| candidate.bucket == "lake" && candidate.warehouse == "of w_a/")
        );
    }
}

#[tokio::test]
async fn the_door_opens_on_loopback_only() {
    let rig = Rig::of(Kind::Memory).await;
    let listener = TcpListener::bind("0.0.0.0:0").await.unwrap();
    let refused = rig.door.clone().serve(listener, CancellationToken::new()).await;
    assert!(matches!(refused, Err(ServeError::NotLoopback(_))));
}

#[tokio::test]
async fn a_stop_lets_the_door_end() {
    let rig = Rig::of(Kind::Memory).await;
    let (listener, stop) = (TcpListener::bind("127.0.0.1:0").await.unwrap(), CancellationToken::new());
    let address = listener.local_addr().unwrap();
    let serving = tokio::spawn(rig.door.clone().serve(listener, stop.clone()));
    // An idle connection must not hold the door open.
    let _idle = tokio::net::TcpStream::connect(address).await.unwrap();
    stop.cancel();
    tokio::time::timeout(Duration::from_secs(5), serving).await.expect("it ends").unwrap().unwrap();
    assert!(tokio::net::TcpStream::connect(address).await.is_err());
}

#[tokio::test]
async fn a_store_that_works_is_healthy_and_ours_to_use() {
    for kind in KINDS {
        let rig = Rig::of(kind).await;
        let ours = rig.store.object_store("lake").unwrap();
        ours.put(&Path::from("w_a/v1.metadata.json"), PutPayload::from_static(b"{}")).await.unwrap();
        rig.store.probe().await.unwrap();
        let pass = rig.worker("w_a/", Role::Reader);
        assert_eq!(
            call("GET", "/lake/w_a/v1.metadata.json", &pass).send(rig.address).await.text(),
            "{}",
            "{kind:?}"
        );
        assert!(rig.store.object_store("../x").is_err() && rig.store.object_store(".staging").is_err());
    }
}

#[tokio::test]
async fn one_worker_has_its_bounds() {
    let mut settings = Settings::of(Kind::Memory);
    let limits = &mut settings.limits;
    (limits.part_bytes_max, limits.upload_inflight_bytes_max, limits.uploads_per_worker_max) =
        (2_048, 4_096, 1);
    let rig = Rig::with(settings, tempfile::tempdir().unwrap(), None).await;
    let (pass, other) = (rig.worker("w_a/", Role::Writer), rig.worker("w_a/", Role::Writer));
    let put =
        async |bytes| call("PUT", "/lake/w_a/x", &pass).body(vec![0; bytes]).send(rig.address).await.status;
    assert_eq!((put(2_048).await, put(2_049).await), (200, 400));
    begin(&rig, &pass, "w_a/1").await;
    assert_eq!(call("POST", "/lake/w_a/2?uploads", &pass).send(rig.address).await.status, 503);
    begin(&rig, &other, "w_a/2").await;
}
