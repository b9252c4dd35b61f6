//! Issuers that publish their keys on a port of this machine, and a server that believes them.

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use aws_lc_rs::encoding::{AsDer, Pkcs8V1Der};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::KeySize;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair,
    RsaKeyPair,
};
use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use reqwest::Response;
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use crate::world::{Organisation, World, read_toml, set};

pub const AUDIENCE: &str = "duck";
pub const IN_FAR_FUTURE: u64 = 4_000_000_000;
/// The issuer that shares a secret.
pub const SHARING: &str = "https://sharing.example/";
pub const SECRET: &str = "a secret for tests, of 32 bytes or more";

/// A key of an issuer, made for one run.
pub struct Key {
    pub header: Header,
    pub encoding: EncodingKey,
    /// What is published of it.
    pub public: Value,
}

impl Key {
    pub fn new(kid: &str, algorithm: Algorithm) -> Key {
        let random = SystemRandom::new();
        let ec = |alg| EncodingKey::from_ec_der(EcdsaKeyPair::generate_pkcs8(alg, &random).unwrap().as_ref());
        let encoding = match algorithm {
            Algorithm::ES256 => ec(&ECDSA_P256_SHA256_FIXED_SIGNING),
            Algorithm::ES384 => ec(&ECDSA_P384_SHA384_FIXED_SIGNING),
            Algorithm::EdDSA => {
                EncodingKey::from_ed_der(Ed25519KeyPair::generate_pkcs8v1(&random).unwrap().as_ref())
            }
            _ => {
                let pair = RsaKeyPair::generate(KeySize::Rsa2048).unwrap();
                let der: Pkcs8V1Der = pair.as_der().unwrap();
                // The library wants what PKCS #8 wraps: 26 bytes of it come before the key itself (RFC 5208, RFC 8017).
                EncodingKey::from_rsa_der(&der.as_ref()[26..])
            }
        };
        let mut public = serde_json::to_value(Jwk::from_encoding_key(&encoding, algorithm).unwrap()).unwrap();
        public["kid"] = json!(kid);
        public["use"] = json!("sig");
        Key { header: Header { kid: Some(kid.to_owned()), ..Header::new(algorithm) }, encoding, public }
    }

    pub fn sign(&self, claims: &Value) -> String {
        self.sign_as(&self.header, claims)
    }

    /// Under another header.
    pub fn sign_as(&self, header: &Header, claims: &Value) -> String {
        jsonwebtoken::encode(header, claims, &self.encoding).unwrap()
    }
}

/// How an issuer answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Manner {
    Well,
    Status(u16),
    /// Not at all.
    Never,
    /// Without an end.
    Huge,
    /// With a redirection to the port.
    Elsewhere(u16),
    /// With a page that is no set of keys.
    Garbage,
}

#[derive(Debug)]
struct State {
    manner: Manner,
    keys: Vec<Value>,
    fetches: u64,
    /// Of an answer without an end: what was taken of it, once nobody takes more.
    taken: Option<usize>,
}

/// An issuer. Its threads end with the process, as the tests share it.
pub struct Issuer {
    pub name: String,
    port: u16,
    state: Arc<Mutex<State>>,
}

impl Issuer {
    pub fn start(name: &str) -> Issuer {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let state = State { manner: Manner::Well, keys: Vec::new(), fetches: 0, taken: None };
        let state = Arc::new(Mutex::new(state));
        let seen = state.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let state = seen.clone();
                std::thread::spawn(move || answer(stream, &state));
            }
        });
        Issuer { name: format!("https://{name}.example/"), port, state }
    }

    pub fn publishes(&self, keys: &[&Key]) {
        self.state.lock().unwrap().keys = keys.iter().map(|key| key.public.clone()).collect();
    }

    pub fn behaves(&self, manner: Manner) {
        self.state.lock().unwrap().manner = manner;
    }

    pub fn fetches(&self) -> u64 {
        self.state.lock().unwrap().fetches
    }

    pub fn taken(&self) -> Option<usize> {
        self.state.lock().unwrap().taken
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// What a good token of this issuer claims.
    pub fn claims(&self) -> Value {
        json!({"iss": self.name, "aud": AUDIENCE, "workspace_id": "acme", "sub": "ann", "exp": IN_FAR_FUTURE})
    }
}

fn answer(mut stream: TcpStream, state: &Mutex<State>) -> Option<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).ok()?;
        head.push(byte[0]);
    }
    let (manner, keys) = {
        let mut state = state.lock().unwrap();
        state.fetches += 1;
        (state.manner, state.keys.clone())
    };
    let mut reply = |head: &str, body: &str| {
        let length = body.len();
        write!(stream, "HTTP/1.1 {head}\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}").ok()
    };
    match manner {
        Manner::Well => reply("200 OK", &json!({"keys": keys}).to_string()),
        Manner::Status(status) => reply(&format!("{status} No"), &json!({"keys": keys}).to_string()),
        Manner::Garbage => reply("200 OK", "<html>down for maintenance</html>"),
        Manner::Elsewhere(port) => reply(&format!("302 Found\r\nlocation: http://127.0.0.1:{port}/keys"), ""),
        // Until the other side goes.
        Manner::Never => stream.read(&mut [0]).ok().map(|_| ()),
        Manner::Huge => {
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n{\"keys\":[").ok()?;
            let piece = [b' '; 1 << 14];
            let mut taken = 0;
            while stream.write_all(&piece).is_ok() {
                taken += piece.len();
            }
            state.lock().unwrap().taken = Some(taken);
            Some(())
        }
    }
}

/// A server, and the issuers that it believes, one for each test: they are told apart by their fetches.
pub struct Believing {
    pub world: World,
    pub issuers: Vec<Issuer>,
}

impl Believing {
    pub fn issuer(&self, name: &str) -> &Issuer {
        let name = format!("https://{name}.example/");
        self.issuers.iter().find(|issuer| issuer.name == name).unwrap()
    }

    /// acme with this token.
    pub fn with(&self, token: &str) -> Organisation {
        Organisation { token: token.to_owned(), ..self.world.acme.clone() }
    }

    /// A request that needs nothing but a token that holds.
    pub async fn ask(&self, token: &str) -> Response {
        let ask = self.world.http.get(format!("{}/queries", self.world.url));
        ask.bearer_auth(token).send().await.unwrap()
    }

    pub async fn holds(&self, token: &str) -> bool {
        self.ask(token).await.status().is_success()
    }
}

/// Each issuer with what is said of it beside its address. A pause of a second, so that a test of waiting does not take long.
const ISSUERS: [(&str, &str); 8] = [
    ("algorithms", ""),
    ("rotation", "keys_ttl_s = 600,"),
    ("down", "keys_ttl_s = 2, keys_age_s_max = 6,"),
    ("silent", ""),
    ("huge", ""),
    ("spam", ""),
    ("confusion", ""),
    (
        "names",
        "claims = { workspace = '/org/id', subject = 'email', roles = 'scope', write = '/org/write' }, \
               write_roles = ['lake:write'], required_claims = ['email'], algorithms = ['ES256'], leeway_s = 60,",
    ),
];

/// One server for all tests of tokens.
pub async fn believing() -> &'static Believing {
    static SHARED: OnceCell<Believing> = OnceCell::const_new();
    SHARED
        .get_or_init(|| async {
            let issuers: Vec<Issuer> = ISSUERS.iter().map(|(name, _)| Issuer::start(name)).collect();
            let mut written = format!(
                "[{{ issuer = '{SHARING}', secret = '{SECRET}', audience = ['other', '{AUDIENCE}'] }},"
            );
            for (issuer, (_, more)) in issuers.iter().zip(ISSUERS) {
                let Issuer { name, port, .. } = issuer;
                write!(
                    written,
                    "{{ issuer = '{name}', jwks_uri = 'http://127.0.0.1:{port}/keys', audience = '{AUDIENCE}', \
                     refetch_pause_s = 1, fetch_ms_max = 1_000, {more} }},"
                )
                .unwrap();
            }
            written.push(']');
            let dir = tempfile::tempdir().unwrap().keep();
            // The first start writes the file with its secrets, and only the second one's end may remove it.
            drop(World::open(&dir, &[], &[]).await);
            let file = dir.join("duck-server.toml");
            let mut settings = read_toml(&file);
            set(&mut settings, "auth", "issuers", &written);
            std::fs::write(&file, settings.to_string()).unwrap();
            let world = World::open(&dir, &[], &[("REMOVE", dir.to_str().unwrap())]).await;
            Believing { world, issuers }
        })
        .await
}

/// Longer than the pause of these issuers.
pub async fn pause() {
    tokio::time::sleep(Duration::from_millis(1_200)).await;
}
