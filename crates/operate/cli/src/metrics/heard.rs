//! A connection's stream that inspects the first bytes on arrival, to detect a health request before it is
//! complete.
//!
//! Nothing is changed or held back. Fails as the stream does.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::connections::Entry;

/// The first bytes of a health request.
const ASKS_FOR_HEALTH: [&[u8]; 2] = [b"GET /healthz", b"HEAD /healthz"];
/// The length of the longest one.
const LONGEST: usize = 13;

/// See the module.
#[derive(Debug)]
pub(super) struct Heard {
    stream: TcpStream,
    entry: Arc<Entry>,
    /// The first bytes, as far as needed.
    first: Vec<u8>,
}

impl Heard {
    /// Creates the stream of a connection that has sent nothing yet.
    pub(super) fn new(stream: TcpStream, entry: Arc<Entry>) -> Self {
        Self { stream, entry, first: Vec::with_capacity(LONGEST) }
    }

    fn hear(&mut self, bytes: &[u8]) {
        let room = LONGEST - self.first.len();
        if room == 0 || bytes.is_empty() {
            return;
        }
        self.first.extend_from_slice(&bytes[..bytes.len().min(room)]);
        if ASKS_FOR_HEALTH.iter().any(|asks| self.first.starts_with(asks)) {
            self.entry.asks_for_health();
        }
    }
}

impl AsyncRead for Heard {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buffer.filled().len();
        let read = Pin::new(&mut this.stream).poll_read(context, buffer);
        this.hear(&buffer.filled()[before..]);
        read
    }
}

impl AsyncWrite for Heard {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write_vectored(context, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
