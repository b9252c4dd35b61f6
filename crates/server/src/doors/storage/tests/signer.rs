//! A client that signs whatever it is told to, and sends it as it stands.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

use duck_contract::worker::Keys;
use s3s::dto::{Timestamp, TimestampFormat};
use sha2::{Digest, Sha256};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::doors::BoundPass;

/// The door's own deadlines are shorter.
const ANSWER_MAX: Duration = Duration::from_mins(2);

/// A request, well signed unless told otherwise.
#[derive(Clone)]
pub(super) struct Call {
    pub(super) method: &'static str,
    /// As on the wire.
    pub(super) target: String,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: Vec<u8>,
    pub(super) key_id: String,
    pub(super) secret: String,
    pub(super) date: SystemTime,
    /// Instead of the body's hash.
    pub(super) hash: Option<String>,
    /// Sign the path exactly as it is spelled, rather than its canonical form.
    pub(super) raw: bool,
    /// Instead of the signature.
    pub(super) authorization: Option<String>,
}

#[derive(Debug)]
pub(super) struct Reply {
    pub(super) status: u16,
    pub(super) head: String,
    pub(super) body: Vec<u8>,
}

impl Reply {
    pub(super) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The text of the first XML element of that name.
    pub(super) fn element(&self, name: &str) -> Option<String> {
        let text = self.text();
        let (_, rest) = text.split_once(&format!("<{name}>"))?;
        Some(rest.split_once('<')?.0.to_owned())
    }
}

pub(super) fn call(method: &'static str, target: &str, pass: &BoundPass) -> Call {
    call_with(method, target, pass.keys())
}

pub(super) fn call_with(method: &'static str, target: &str, keys: &Keys) -> Call {
    Call {
        method,
        target: target.into(),
        headers: vec![],
        body: vec![],
        key_id: keys.access_key_id.clone(),
        secret: keys.secret_access_key.clone(),
        date: SystemTime::now(),
        hash: None,
        raw: false,
        authorization: None,
    }
}

impl Call {
    pub(super) fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = body.into();
        self
    }

    pub(super) fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    fn date(&self) -> String {
        let mut text = Vec::new();
        Timestamp::from(self.date).format(TimestampFormat::DateTime, &mut text).unwrap();
        let text = String::from_utf8(text).unwrap().replace(['-', ':'], "");
        format!("{}Z", text.split('.').next().unwrap().trim_end_matches('Z'))
    }

    fn sign(&self, host: &str, hash: &str) -> String {
        let date = self.date();
        let scope = format!("{}/us-east-1/s3/aws4_request", &date[..8]);
        let (path, query) = self.target.split_once('?').unwrap_or((&self.target, ""));
        let mut words: Vec<_> = query.split('&').filter(|word| !word.is_empty()).map(String::from).collect();
        words.iter_mut().filter(|word| !word.contains('=')).for_each(|word| word.push('='));
        words.sort();
        let path = if self.raw { path.to_owned() } else { encode(&decode(path)) };
        let canonical = format!(
            "{}\n{path}\n{}\nhost:{host}\nx-amz-content-sha256:{hash}\nx-amz-date:{date}\n\nhost;x-amz-content-sha256;x-amz-date\n{hash}",
            self.method,
            words.join("&")
        );
        let text = format!("AWS4-HMAC-SHA256\n{date}\n{scope}\n{}", hex(&Sha256::digest(canonical)));
        let key = [&date[..8], "us-east-1", "s3", "aws4_request"]
            .iter()
            .fold(format!("AWS4{}", self.secret).into_bytes(), |key, part| hmac(&key, part.as_bytes()));
        format!(
            "AWS4-HMAC-SHA256 Credential={}/{scope}, SignedHeaders=host;x-amz-content-sha256;x-amz-date, Signature={}",
            self.key_id,
            hex(&hmac(&key, text.as_bytes()))
        )
    }

    pub(super) async fn send(&self, door: SocketAddr) -> Reply {
        let answer =
            exchange(door, &[self.head(door, "close").as_slice(), &self.body].concat(), ANSWER_MAX).await;
        let end = answer.windows(4).position(|window| window == b"\r\n\r\n").expect("an answer");
        let head = String::from_utf8_lossy(&answer[..end]).into_owned();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Reply { status, head, body: answer[end + 4..].to_vec() }
    }

    /// The head as it goes over the wire, with its empty line.
    pub(super) fn head(&self, door: SocketAddr, connection: &str) -> Vec<u8> {
        let (host, hash) =
            (door.to_string(), self.hash.clone().unwrap_or_else(|| hex(&Sha256::digest(&self.body))));
        let authorization = self.authorization.clone().unwrap_or_else(|| self.sign(&host, &hash));
        let mut head = format!(
            "{} {} HTTP/1.1\r\nhost: {host}\r\nconnection: {connection}\r\n",
            self.method, self.target
        );
        write!(head, "x-amz-date: {}\r\nx-amz-content-sha256: {hash}\r\n", self.date()).unwrap();
        if !authorization.is_empty() {
            write!(head, "authorization: {authorization}\r\n").unwrap();
        }
        if matches!(self.method, "PUT" | "POST") {
            write!(head, "content-length: {}\r\n", self.body.len()).unwrap();
        }
        self.headers.iter().for_each(|(name, value)| write!(head, "{name}: {value}\r\n").unwrap());
        head.push_str("\r\n");
        head.into_bytes()
    }

    /// The signature that it would be sent with.
    pub(super) fn authorization(&self, door: SocketAddr) -> String {
        self.sign(&door.to_string(), &self.hash.clone().unwrap_or_else(|| hex(&Sha256::digest(&self.body))))
    }
}

/// Sends these bytes and nothing more, and gives back all that comes until the door hangs up, or for so long.
pub(super) async fn exchange(door: SocketAddr, bytes: &[u8], long: Duration) -> Vec<u8> {
    let (mut reading, mut writing) = TcpStream::connect(door).await.unwrap().into_split();
    let mut answer = Vec::new();
    // A door that refuses may hang up before it has read all.
    let both = async { tokio::join!(writing.write_all(bytes), reading.read_to_end(&mut answer)) };
    let _ = tokio::time::timeout(long, both).await;
    answer
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

/// RFC 2104.
fn hmac(key: &[u8], text: &[u8]) -> Vec<u8> {
    let mut block = [0; 64];
    block[..key.len()].copy_from_slice(key);
    let pad = |byte: u8| block.map(|key| key ^ byte);
    let inner = Sha256::new().chain_update(pad(0x36)).chain_update(text).finalize();
    Sha256::new().chain_update(pad(0x5c)).chain_update(inner).finalize().to_vec()
}

fn decode(path: &str) -> Vec<u8> {
    let (mut bytes, mut rest) = (Vec::new(), path.as_bytes());
    while let [byte, tail @ ..] = rest {
        let digits =
            tail.get(..2).and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok());
        match digits.filter(|_| *byte == b'%') {
            Some(decoded) => (bytes.push(decoded), rest = &tail[2..]),
            None => (bytes.push(*byte), rest = tail),
        };
    }
    bytes
}

fn encode(bytes: &[u8]) -> String {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.~/".contains(byte);
    let letter = |byte: &u8| if plain(byte) { char::from(*byte).to_string() } else { format!("%{byte:02X}") };
    bytes.iter().map(letter).collect()
}
