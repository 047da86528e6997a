//! As much of `AMQP` 0-9-1 as a queue needs: declared, written to with confirms, and read with acknowledgements.
//!
//! A failure is a panic, since a test stands on it.

use std::io::{BufReader, Read as _, Write as _};
use std::net::TcpStream;

use super::DEADLINE;

/// Kinds of frames.
const METHOD: u8 = 1;
const HEADER: u8 = 2;
const BODY: u8 = 3;
/// What ends a frame.
const END: u8 = 0xCE;
/// The channel that all is said on, but for the connection's own words.
const CHANNEL: u16 = 1;

/// A connection with one channel.
#[derive(Debug)]
pub(super) struct Amqp {
    to: TcpStream,
    from: BufReader<TcpStream>,
    /// Bytes of a frame at most.
    frame: usize,
}

/// The arguments of a method.
#[derive(Default)]
struct Arguments(Vec<u8>);

impl Arguments {
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

/// Reads the arguments of a method.
struct Words<'a>(&'a [u8]);

impl Words<'_> {
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

impl Amqp {
    /// `None` while nobody listens.
    pub(super) fn connect(port: u16) -> Option<Self> {
        let mut to = TcpStream::connect(("127.0.0.1", port)).ok()?;
        to.set_read_timeout(Some(DEADLINE)).expect("set a time");
        to.set_nodelay(true).expect("set it to send at once");
        let from = BufReader::with_capacity(1 << 20, to.try_clone().expect("a second handle"));
        to.write_all(b"AMQP\0\0\x09\x01").ok()?;
        let mut client = Self { to, from, frame: 4096 };
        client.expect((10, 10));
        let start = Arguments::default().long(0).text("PLAIN").long_text(b"\0guest\0guest").text("en_US");
        client.say(0, (10, 11), start);
        let tune = client.expect((10, 30));
        let mut tune = Words(&tune);
        let (channels, frame): ([u8; 2], [u8; 4]) = (tune.number(), tune.number());
        let (channels, frame) = (u16::from_be_bytes(channels), u32::from_be_bytes(frame));
        client.frame = usize::try_from(frame).expect("a size");
        client.say(0, (10, 31), Arguments::default().short(channels).long(frame).short(0));
        client.say(0, (10, 40), Arguments::default().text("/").text("").byte(0));
        client.expect((10, 41));
        client.say(CHANNEL, (20, 10), Arguments::default().text(""));
        client.expect((20, 11));
        Some(client)
    }

    /// Makes a quorum queue, where it is not there.
    pub(super) fn declare(&mut self, queue: &str) {
        let table = Arguments::default().text("x-queue-type").byte(b'S').long_text(b"quorum");
        let arguments = Arguments::default().short(0).text(queue).byte(2).long_text(&table.0);
        self.say(CHANNEL, (50, 10), arguments);
        self.expect((50, 11));
    }

    /// Has what is published confirmed from now on.
    pub(super) fn confirm(&mut self) {
        self.say(CHANNEL, (85, 10), Arguments::default().byte(0));
        self.expect((85, 11));
    }

    /// Publishes a message that outlives the server.
    pub(super) fn publish(&mut self, queue: &str, body: &[u8]) {
        self.say(CHANNEL, (60, 40), Arguments::default().short(0).text("").text(queue).byte(0));
        let persistent = Arguments::default().short(60).short(0).long_long(u64::from(length(body)));
        self.send(HEADER, CHANNEL, &persistent.short(1 << 12).byte(2).0);
        for part in body.chunks(self.frame - 8) {
            self.send(BODY, CHANNEL, part);
        }
    }

    /// Waits for a confirmation; says up to which message it goes, of those published.
    pub(super) fn confirmed(&mut self) -> u64 {
        let said = self.expect((60, 80));
        u64::from_be_bytes(Words(&said).number())
    }

    /// Begins to consume, so many messages ahead of the acknowledgements.
    pub(super) fn consume(&mut self, queue: &str, ahead: u16) {
        self.say(CHANNEL, (60, 10), Arguments::default().long(0).short(ahead).byte(0));
        self.expect((60, 11));
        self.say(CHANNEL, (60, 20), Arguments::default().short(0).text(queue).text("").byte(0).long(0));
        self.expect((60, 21));
    }

    /// The next message, and the number by which it is acknowledged.
    pub(super) fn deliver(&mut self) -> (u64, Vec<u8>) {
        let said = self.expect((60, 60));
        let mut said = Words(&said);
        said.skip_text();
        let tag = u64::from_be_bytes(said.number());
        let (kind, header) = self.receive();
        assert_eq!(kind, HEADER);
        let mut header = Words(&header);
        let (_, size): ([u8; 4], [u8; 8]) = (header.number(), header.number());
        let size = usize::try_from(u64::from_be_bytes(size)).expect("a size");
        let mut body = Vec::with_capacity(size);
        while body.len() < size {
            let (kind, part) = self.receive();
            assert_eq!(kind, BODY);
            body.extend(part);
        }
        (tag, body)
    }

    /// Acknowledges a message.
    pub(super) fn acknowledge(&mut self, tag: u64) {
        self.say(CHANNEL, (60, 80), Arguments::default().long_long(tag).byte(0));
    }

    fn say(&mut self, channel: u16, (class, method): (u16, u16), arguments: Arguments) {
        let said = Arguments::default().short(class).short(method);
        self.send(METHOD, channel, &[said.0, arguments.0].concat());
    }

    fn send(&mut self, kind: u8, channel: u16, payload: &[u8]) {
        let head = Arguments::default().byte(kind).short(channel).long(length(payload));
        self.to.write_all(&[&head.0, payload, &[END]].concat()).expect("the server goes on");
    }

    /// The arguments of the next method, which has to be this one.
    fn expect(&mut self, wanted: (u16, u16)) -> Vec<u8> {
        let (kind, payload) = self.receive();
        assert_eq!(kind, METHOD);
        let mut words = Words(&payload);
        let method = (u16::from_be_bytes(words.number()), u16::from_be_bytes(words.number()));
        assert_eq!(method, wanted, "{}", String::from_utf8_lossy(&payload));
        words.0.to_owned()
    }

    /// The next frame: its kind and what it says.
    fn receive(&mut self) -> (u8, Vec<u8>) {
        let mut head = [0; 7];
        self.from.read_exact(&mut head).expect("the server goes on");
        let [kind, _, _, size @ ..] = head;
        let mut payload = vec![0; usize::try_from(u32::from_be_bytes(size)).expect("a size") + 1];
        self.from.read_exact(&mut payload).expect("the server goes on");
        assert_eq!(payload.pop(), Some(END));
        (kind, payload)
    }
}
