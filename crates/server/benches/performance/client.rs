//! A client that costs next to nothing: one kept connection, requests made beforehand.

use std::net::SocketAddr;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::Failed;

/// One connection.
pub(crate) struct Client {
    stream: TcpStream,
    buffer: Vec<u8>,
}

/// `POST /query`, ready to send.
pub(crate) fn query(token: &str, body: &Value) -> Vec<u8> {
    let body = body.to_string();
    format!(
        "POST /query HTTP/1.1\r\nhost: bench\r\nauthorization: Bearer {token}\r\ncontent-type: application/json\r\n\
         te: trailers\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

/// The same under an id of the client's own.
pub(crate) fn named_query(token: &str, id: &str, body: &Value) -> Vec<u8> {
    let plain = String::from_utf8_lossy(&query(token, body)).into_owned();
    plain.replacen("\r\n", &format!("\r\nx-request-id: {id}\r\n"), 1).into_bytes()
}

/// `DELETE /queries/{id}`, ready to send.
pub(crate) fn cancel(token: &str, id: &str) -> Vec<u8> {
    format!("DELETE /queries/{id} HTTP/1.1\r\nhost: bench\r\nauthorization: Bearer {token}\r\n\r\n")
        .into_bytes()
}

impl Client {
    pub(crate) async fn connect(address: SocketAddr) -> Result<Client, Failed> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Client { stream, buffer: Vec::with_capacity(64 << 10) })
    }

    /// Sends a request whose answer has a length, and returns that answer's body. It must be a success.
    pub(crate) async fn ask(&mut self, request: &[u8]) -> Result<&[u8], Failed> {
        self.stream.write_all(request).await?;
        self.buffer.clear();
        let (head, length) = loop {
            self.more().await?;
            if let Some(end) = self.buffer.windows(4).position(|window| window == b"\r\n\r\n") {
                let head = std::str::from_utf8(&self.buffer[..end])?;
                let length = head
                    .lines()
                    .find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok());
                break (end + 4, length);
            }
        };
        let length = length.ok_or("the answer has no length")?;
        while self.buffer.len() < head + length {
            self.more().await?;
        }
        if !self.buffer.starts_with(b"HTTP/1.1 200") {
            return Err(String::from_utf8_lossy(&self.buffer).into_owned().into());
        }
        Ok(&self.buffer[head..])
    }

    /// Sends a request and reads a long answer to its good end, keeping nothing. Returns how many bytes came.
    pub(crate) async fn drain(mut self, request: &[u8]) -> Result<u64, Failed> {
        self.stream.write_all(request).await?;
        self.buffer.resize(1 << 20, 0);
        let mut bytes = 0;
        loop {
            let read = self.stream.read(&mut self.buffer).await?;
            if read == 0 {
                return Err("the answer broke off".into());
            }
            bytes += read as u64;
            if self.buffer[..read].ends_with(b"x-truncated: false\r\n\r\n") {
                return Ok(bytes);
            }
        }
    }

    async fn more(&mut self) -> Result<(), Failed> {
        if self.stream.read_buf(&mut self.buffer).await? == 0 {
            return Err(format!("the connection ended: {}", String::from_utf8_lossy(&self.buffer)).into());
        }
        Ok(())
    }
}
