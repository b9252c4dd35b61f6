//! What stands between a server and what it depends on, and behaves badly when it is told to.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// How it behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Manner {
    /// Everything passes.
    Well,
    /// Every request is answered with this status.
    Status(u16),
    /// Nothing is answered.
    Never,
    /// Of every answer the head comes and half of its body.
    Half,
    /// Everything passes, but a login is said to hold for half a minute only.
    Hurried,
    /// Connections are closed.
    Gone,
}

/// A proxy on a port of its own. Its tasks end with the test's runtime.
pub struct Between {
    pub port: u16,
    manner: watch::Sender<Manner>,
}

impl Between {
    /// Before this port on loopback; behaves well.
    pub async fn before(upstream: u16) -> Between {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (manner, seen) = watch::channel(Manner::Well);
        tokio::spawn(async move {
            loop {
                let (client, _) = listener.accept().await.unwrap();
                let mut changes = seen.clone();
                let now = *changes.borrow_and_update();
                tokio::spawn(async move {
                    // A connection does not outlive the manner in which it was accepted.
                    tokio::select! {
                        _ = changes.changed() => {}
                        _ = serve(client, upstream, now) => {}
                    }
                });
            }
        });
        Between { port, manner }
    }

    /// From now on, for what is connected already as well.
    pub fn behaves(&self, manner: Manner) {
        self.manner.send_replace(manner);
    }
}

const LIFETIME: &str = "\"expires_in\":3600";
const HURRIED: &str = "\"expires_in\":34  ";

async fn serve(mut client: TcpStream, upstream: u16, manner: Manner) -> std::io::Result<()> {
    match manner {
        Manner::Gone => Ok(()),
        Manner::Never => std::future::pending().await,
        Manner::Well => {
            let mut server = TcpStream::connect(("127.0.0.1", upstream)).await?;
            tokio::io::copy_bidirectional(&mut client, &mut server).await.map(|_| ())
        }
        Manner::Status(status) => {
            head(&mut client).await?;
            let body = r#"{"error":{"message":"no","type":"Planted","code":0}}"#;
            let answer = format!(
                "HTTP/1.1 {status} Planted\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
                body.len()
            );
            client.write_all(answer.as_bytes()).await?;
            // Closing with something unread would reset the connection before the answer is read.
            let _ =
                tokio::time::timeout(Duration::from_millis(200), client.read_to_end(&mut Vec::new())).await;
            Ok(())
        }
        Manner::Half | Manner::Hurried => {
            let mut server = TcpStream::connect(("127.0.0.1", upstream)).await?;
            let (mut from, mut to) = client.split();
            let (mut answer, mut request) = server.split();
            let send = tokio::io::copy(&mut from, &mut request);
            let cut = async {
                let (mut bytes, begun) = head(&mut answer).await?;
                let text = String::from_utf8_lossy(&bytes).to_ascii_lowercase();
                let length =
                    text.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok());
                let mut body = vec![0; length.unwrap_or(begun.len())];
                let there = begun.len().min(body.len());
                body[..there].copy_from_slice(&begun[..there]);
                answer.read_exact(&mut body[there..]).await?;
                if manner == Manner::Half {
                    body.truncate(body.len() / 2);
                }
                // Of the same length, since the head is passed on.
                let body = String::from_utf8_lossy(&body).replace(LIFETIME, HURRIED).into_bytes();
                bytes.extend_from_slice(&body);
                to.write_all(&bytes).await
            };
            tokio::select! {
                _ = send => Ok(()),
                done = cut => done,
            }
        }
    }
}

/// Reads the head of a message: it, and what came of the body with it.
async fn head(from: &mut (impl AsyncReadExt + Unpin)) -> std::io::Result<(Vec<u8>, Vec<u8>)> {
    let mut bytes = Vec::new();
    loop {
        if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            let body = bytes.split_off(end + 4);
            return Ok((bytes, body));
        }
        if from.read_buf(&mut bytes).await? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
    }
}
