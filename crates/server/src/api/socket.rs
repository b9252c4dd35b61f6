//! Connections of clients.

use std::pin::Pin;
use std::time::Duration;

use axum::serve::Listener;
use tokio::net::{TcpListener, TcpStream};
use tokio_io_timeout::TimeoutStream;

/// Accepts connections that are cut when their client takes nothing for so long: what is held for an answer must not be held
/// for somebody who has stopped reading.
pub struct Patient {
    listener: TcpListener,
    stall_max: Duration,
}

impl Patient {
    /// On this listener.
    pub fn new(listener: TcpListener, stall_max: Duration) -> Self {
        Patient { listener, stall_max }
    }
}

impl Listener for Patient {
    type Io = Pin<Box<TimeoutStream<TcpStream>>>;
    type Addr = std::net::SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        // Axum's own loop: it waits a moment when there are no descriptors left.
        let (stream, address) = Listener::accept(&mut self.listener).await;
        // The last piece of an answer must not wait for the client's word on the one before.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "answers may be late by a delayed acknowledgement");
        }
        let mut stream = TimeoutStream::new(stream);
        stream.set_write_timeout(Some(self.stall_max));
        (Box::pin(stream), address)
    }

    fn local_addr(&self) -> std::io::Result<Self::Addr> {
        self.listener.local_addr()
    }
}
