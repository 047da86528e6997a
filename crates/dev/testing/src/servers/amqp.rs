//! The part of `AMQP` 0-9-1 that a queue needs: declare, publish with confirms, consume with
//! acknowledgements.
//!
//! Failures panic, since a test depends on them.

use std::io::{BufReader, Read as _, Write as _};
use std::net::TcpStream;

use super::SERVER_TIMEOUT;

/// Frame types.
const FRAME_METHOD: u8 = 1;
const FRAME_HEADER: u8 = 2;
const FRAME_BODY: u8 = 3;
/// The last byte of each frame.
const FRAME_END: u8 = 0xCE;
/// The channel of everything except the messages of the connection itself.
const CHANNEL_NUMBER: u16 = 1;

/// A connection with one channel.
#[derive(Debug)]
pub(super) struct AmqpConnection {
    to: TcpStream,
    from: BufReader<TcpStream>,
    /// Maximum size of a frame in bytes.
    frame: usize,
}

/// The arguments of a method.
#[derive(Default)]
struct MethodArguments(Vec<u8>);

impl MethodArguments {
    fn byte(mut self, byte: u8) -> Self {
        self.0.push(byte);
        self
    }

    fn short(mut self, number: u16) -> Self {
        self.0.extend(number.to_be_bytes());
        self
    }

    fn long(mut self, number: u32) -> Self {
        self.0.extend(number.to_be_bytes());
        self
    }

    fn long_long(mut self, number: u64) -> Self {
        self.0.extend(number.to_be_bytes());
        self
    }

    fn text(mut self, text: &str) -> Self {
        self.0.push(u8::try_from(text.len()).expect("a short text"));
        self.0.extend(text.as_bytes());
        self
    }

    fn long_text(mut self, text: &[u8]) -> Self {
        self.0.extend(length(text).to_be_bytes());
        self.0.extend(text);
        self
    }
}

/// A parser of a method's arguments.
struct ArgumentReader<'a>(&'a [u8]);

impl ArgumentReader<'_> {
    fn number<const N: usize>(&mut self) -> [u8; N] {
        let (number, rest) = self.0.split_first_chunk().expect("a number");
        self.0 = rest;
        *number
    }

    fn skip_text(&mut self) {
        let (length, rest) = self.0.split_first().expect("a text");
        self.0 = &rest[usize::from(*length)..];
    }
}

fn length(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.len()).expect("less than 4 GiB")
}

impl AmqpConnection {
    /// Connects to a port. Returns `None` if nobody listens.
    pub(super) fn connect(port: u16) -> Option<Self> {
        let mut to = TcpStream::connect(("127.0.0.1", port)).ok()?;
        to.set_read_timeout(Some(SERVER_TIMEOUT)).expect("set a time");
        to.set_nodelay(true).expect("set it to send at once");
        let from = BufReader::with_capacity(1 << 20, to.try_clone().expect("a second handle"));
        to.write_all(b"AMQP\0\0\x09\x01").ok()?;
        let mut client = Self { to, from, frame: 4096 };
        client.expect((10, 10));
        let start =
            MethodArguments::default().long(0).text("PLAIN").long_text(b"\0guest\0guest").text("en_US");
        client.say(0, (10, 11), start);
        let tune = client.expect((10, 30));
        let mut tune = ArgumentReader(&tune);
        let (channels, frame): ([u8; 2], [u8; 4]) = (tune.number(), tune.number());
        let (channels, frame) = (u16::from_be_bytes(channels), u32::from_be_bytes(frame));
        client.frame = usize::try_from(frame).expect("a size");
        client.say(0, (10, 31), MethodArguments::default().short(channels).long(frame).short(0));
        client.say(0, (10, 40), MethodArguments::default().text("/").text("").byte(0));
        client.expect((10, 41));
        client.say(CHANNEL_NUMBER, (20, 10), MethodArguments::default().text(""));
        client.expect((20, 11));
        Some(client)
    }

    /// Declares a quorum queue, unless it exists.
    pub(super) fn declare(&mut self, queue: &str) {
        let table = MethodArguments::default().text("x-queue-type").byte(b'S').long_text(b"quorum");
        let arguments = MethodArguments::default().short(0).text(queue).byte(2).long_text(&table.0);
        self.say(CHANNEL_NUMBER, (50, 10), arguments);
        self.expect((50, 11));
    }

    /// Enables publisher confirms.
    pub(super) fn confirm(&mut self) {
        self.say(CHANNEL_NUMBER, (85, 10), MethodArguments::default().byte(0));
        self.expect((85, 11));
    }

    /// Publishes a message that survives a restart of the server.
    pub(super) fn publish(&mut self, queue: &str, body: &[u8]) {
        self.say(CHANNEL_NUMBER, (60, 40), MethodArguments::default().short(0).text("").text(queue).byte(0));
        let persistent = MethodArguments::default().short(60).short(0).long_long(u64::from(length(body)));
        self.send(FRAME_HEADER, CHANNEL_NUMBER, &persistent.short(1 << 12).byte(2).0);
        for part in body.chunks(self.frame - 8) {
            self.send(FRAME_BODY, CHANNEL_NUMBER, part);
        }
    }

    /// Waits for a confirm. Returns the number of the last published message that it covers.
    pub(super) fn confirmed(&mut self) -> u64 {
        let said = self.expect((60, 80));
        u64::from_be_bytes(ArgumentReader(&said).number())
    }

    /// Starts to consume. At most `ahead` messages are delivered before they are acknowledged.
    pub(super) fn consume(&mut self, queue: &str, ahead: u16) {
        self.say(CHANNEL_NUMBER, (60, 10), MethodArguments::default().long(0).short(ahead).byte(0));
        self.expect((60, 11));
        self.say(
            CHANNEL_NUMBER,
            (60, 20),
            MethodArguments::default().short(0).text(queue).text("").byte(0).long(0),
        );
        self.expect((60, 21));
    }

    /// Receives the next message, with its delivery tag.
    pub(super) fn deliver(&mut self) -> (u64, Vec<u8>) {
        let said = self.expect((60, 60));
        let mut said = ArgumentReader(&said);
        said.skip_text();
        let tag = u64::from_be_bytes(said.number());
        let (kind, header) = self.receive();
        assert_eq!(kind, FRAME_HEADER);
        let mut header = ArgumentReader(&header);
        let (_, size): ([u8; 4], [u8; 8]) = (header.number(), header.number());
        let size = usize::try_from(u64::from_be_bytes(size)).expect("a size");
        let mut body = Vec::with_capacity(size);
        while body.len() < size {
            let (kind, part) = self.receive();
            assert_eq!(kind, FRAME_BODY);
            body.extend(part);
        }
        (tag, body)
    }

    /// Acknowledges a message.
    pub(super) fn acknowledge(&mut self, tag: u64) {
        self.say(CHANNEL_NUMBER, (60, 80), MethodArguments::default().long_long(tag).byte(0));
    }

    fn say(&mut self, channel: u16, (class, method): (u16, u16), arguments: MethodArguments) {
        let said = MethodArguments::default().short(class).short(method);
        self.send(FRAME_METHOD, channel, &[said.0, arguments.0].concat());
    }

    fn send(&mut self, kind: u8, channel: u16, payload: &[u8]) {
        let head = MethodArguments::default().byte(kind).short(channel).long(length(payload));
        self.to.write_all(&[&head.0, payload, &[FRAME_END]].concat()).expect("the server continues");
    }

    /// Receives the next method, which must be `wanted`, and returns its arguments.
    fn expect(&mut self, wanted: (u16, u16)) -> Vec<u8> {
        let (kind, payload) = self.receive();
        assert_eq!(kind, FRAME_METHOD);
        let mut words = ArgumentReader(&payload);
        let method = (u16::from_be_bytes(words.number()), u16::from_be_bytes(words.number()));
        assert_eq!(method, wanted, "{}", String::from_utf8_lossy(&payload));
        words.0.to_owned()
    }

    /// Receives the next frame: its type and payload.
    fn receive(&mut self) -> (u8, Vec<u8>) {
        let mut head = [0; 7];
        self.from.read_exact(&mut head).expect("the server continues");
        let [kind, _, _, size @ ..] = head;
        let mut payload = vec![0; usize::try_from(u32::from_be_bytes(size)).expect("a size") + 1];
        self.from.read_exact(&mut payload).expect("the server continues");
        assert_eq!(payload.pop(), Some(FRAME_END));
        (kind, payload)
    }
}
