//! What stands between a server and what it depends on, and behaves badly when it is told to.

use std::sync::{Arc, Mutex};
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
    /// The same, and the answer says all that the request's head had, as a message and as a header.
    Echo(u16),
    /// The first login that is seen from now on has ended: 401. Others pass.
    Ended,
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
    logins: Logins,
}

/// What came as `Authorization` while it echoed or took a login for ended.
type Logins = Arc<Mutex<Vec<String>>>;

impl Between {
    /// Before this port on loopback; behaves well.
    pub async fn before(upstream: u16) -> Between {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (manner, seen) = watch::channel(Manner::Well);
        let logins = Logins::default();
        let heard = logins.clone();
        tokio::spawn(async move {
            loop {
                let (client, _) = listener.accept().await.unwrap();
                let mut changes = seen.clone();
                let (now, heard) = (*changes.borrow_and_update(), heard.clone());
                tokio::spawn(async move {
                    // A connection does not outlive the manner in which it was accepted.
                    tokio::select! {
                        _ = changes.changed() => {}
                        _ = serve(client, upstream, now, &heard) => {}
                    }
                });
            }
        });
        Between { port, manner, logins }
    }

    /// From now on, for what is connected already as well.
    pub fn behaves(&self, manner: Manner) {
        self.manner.send_replace(manner);
    }

    /// The logins that it was shown when it echoed them or took them for ended.
    pub fn logins(&self) -> Vec<String> {
        self.logins.lock().unwrap().clone()
    }
}

const LIFETIME: &str = "\"expires_in\":3600";
const HURRIED: &str = "\"expires_in\":34  ";

async fn serve(mut client: TcpStream, upstream: u16, manner: Manner, logins: &Logins) -> std::io::Result<()> {
    match manner {
        Manner::Gone => Ok(()),
        Manner::Never => std::future::pending().await,
        Manner::Well => {
            let mut server = TcpStream::connect(("127.0.0.1", upstream)).await?;
            tokio::io::copy_bidirectional(&mut client, &mut server).await.map(|_| ())
        }
        Manner::Status(status) => {
            head(&mut client).await?;
            fails(&mut client, status, "no").await
        }
        Manner::Echo(status) => {
            let (asked, _) = head(&mut client).await?;
            let login = authorization(&asked);
            logins.lock().unwrap().push(login.clone());
            fails(&mut client, status, &format!("you said: {login}")).await
        }
        Manner::Ended => {
            let (asked, begun) = head(&mut client).await?;
            let login = authorization(&asked);
            let ended = logins.lock().unwrap().first().is_none_or(|first| *first == login);
            if ended {
                logins.lock().unwrap().push(login);
                return fails(&mut client, 401, "this login has ended").await;
            }
            let mut server = TcpStream::connect(("127.0.0.1", upstream)).await?;
            server.write_all(&[asked, begun].concat()).await?;
            tokio::io::copy_bidirectional(&mut client, &mut server).await.map(|_| ())
        }
        Manner::Half | Manner::Hurried => {
            let (asked, begun) = head(&mut client).await?;
            // What the client has would be answered without a body, of which there is no half.
            let asked = String::from_utf8_lossy(&asked).replace("if-none-match", "x-ignored");
            let mut server = TcpStream::connect(("127.0.0.1", upstream)).await?;
            server.write_all(&[asked.as_bytes(), &begun].concat()).await?;
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

/// Answers with this status and message, and closes.
async fn fails(client: &mut TcpStream, status: u16, message: &str) -> std::io::Result<()> {
    let body = serde_json::json!({"error": {"message": message, "type": "Planted", "code": 0}}).to_string();
    let answer = format!(
        "HTTP/1.1 {status} Planted\r\nContent-Type: application/json\r\nX-Echo: {message}\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n{body}",
        body.len()
    );
    client.write_all(answer.as_bytes()).await?;
    // Closing with something unread would reset the connection before the answer is read.
    let _ = tokio::time::timeout(Duration::from_millis(200), client.read_to_end(&mut Vec::new())).await;
    Ok(())
}

/// What a request's head has for a login.
fn authorization(head: &[u8]) -> String {
    let text = String::from_utf8_lossy(head);
    let mut lines = text.lines().filter_map(|line| line.split_once(": "));
    let login = lines.find(|(name, _)| name.eq_ignore_ascii_case("authorization"));
    login.map(|(_, value)| value.to_owned()).unwrap_or_default()
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
