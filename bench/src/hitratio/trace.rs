//! Traces: the pages that are read, in their order, from a file or made up from a seed.
//!
//! A file is text, plain or compressed with zstd, which its first bytes show. Each line is a request: the first block,
//! the number of blocks, then anything. Each block is a page. Empty lines and lines that begin with `#` are skipped.
//! Invariants: pages are numbered without gaps from 0 in the order of their first read; `blocks` has each page's number
//! in the file. Fails where the file cannot be read, or with the number of a line that is not a request.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek};
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use ruzstd::decoding::{FrameDecoder, StreamingDecoder};

use crate::rounds::Random;

/// Reads of a trace at most: each takes four bytes here.
const MOST_READS: u64 = 1 << 29;
/// The first bytes of a zstd frame (RFC 8878, 3.1.1).
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// A sequence of page reads.
#[derive(Debug, Clone, Default)]
pub(super) struct Trace {
    /// Its name in tables.
    pub(super) name: String,
    /// Page numbers.
    pub(super) reads: Vec<u32>,
    /// The block of each page.
    pub(super) blocks: Vec<u64>,
}

/// Numbers pages in the order of their first read.
#[derive(Debug, Default)]
struct Numbering {
    numbers: HashMap<u64, u32>,
    trace: Trace,
}

impl Numbering {
    fn read(&mut self, block: u64) {
        let next = self.trace.blocks.len();
        let number = *self.numbers.entry(block).or_insert_with(|| {
            self.trace.blocks.push(block);
            u32::try_from(next).unwrap_or_else(|_| unreachable!("there are at most {MOST_READS} reads"))
        });
        self.trace.reads.push(number);
    }
}

impl Trace {
    /// Returns the number of different pages.
    pub(super) fn pages(&self) -> usize {
        self.blocks.len()
    }

    /// Keeps the first `most` reads.
    pub(super) fn shortened(self, most: usize) -> Self {
        if self.reads.len() <= most {
            return self;
        }
        let mut numbering = Numbering::default();
        numbering.trace.name = self.name;
        for &page in &self.reads[..most] {
            numbering.read(self.blocks[page as usize]);
        }
        numbering.trace
    }

    /// Reads a trace from a file.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let shown = path.display();
        let mut file = File::open(path).with_context(|| format!("can't open {shown}"))?;
        ensure!(file.metadata().is_ok_and(|meta| meta.is_file()), "{shown} is not a file");
        let mut first = Vec::new();
        Read::by_ref(&mut file)
            .take(4)
            .read_to_end(&mut first)
            .with_context(|| format!("can't read {shown}"))?;
        file.rewind().with_context(|| format!("can't read {shown}"))?;
        let mut text: Box<dyn BufRead> = if first == ZSTD_MAGIC {
            Box::new(BufReader::with_capacity(1 << 16, Unpacked::Between(BufReader::new(file))))
        } else {
            Box::new(BufReader::with_capacity(1 << 16, file))
        };
        let mut trace = parse(&mut text, &shown.to_string())?;
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
        name.strip_suffix(".zst").unwrap_or(&name).clone_into(&mut trace.name);
        Ok(trace)
    }

    /// Creates reads by Zipf's law over scattered pages, with occasional scans of a tenth of them in order.
    pub(super) fn zipf_with_scans(law: &Zipf, reads: usize, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let pages = law.cumulated.len();
        // A page's popularity is independent of its position.
        let mut scattered: Vec<u64> = (0..pages as u64).collect();
        random.shuffle(&mut scattered);
        let mut numbering = Numbering::default();
        numbering.trace.name = format!("Zipf {} with scans", law.exponent);
        for done in 1..=reads {
            numbering.read(scattered[law.rank(&mut random)]);
            if done % (pages / 2) == 0 {
                let pages = pages as u64;
                let start = random.below(pages);
                (0..pages / 10).for_each(|next| numbering.read((start + next) % pages));
            }
        }
        numbering.trace
    }
}

/// Zipf's law: the page of rank n is read in proportion to 1/n^exponent.
#[derive(Debug, Clone)]
pub(super) struct Zipf {
    exponent: f64,
    cumulated: Vec<f64>,
}

impl Zipf {
    pub(super) fn new(pages: u32, exponent: f64) -> Self {
        let mut sum = 0.0;
        let weight = |rank: u32| {
            sum += f64::from(rank).powf(-exponent);
            sum
        };
        Self { exponent, cumulated: (1..=pages).map(weight).collect() }
    }

    /// Returns a random rank, from 0 on.
    fn rank(&self, random: &mut Random) -> usize {
        let all = self.cumulated.last().copied().unwrap_or(0.0);
        // 53 bits, the size of an f64's fraction.
        let at = (random.next_u64() >> 11) as f64 / (1_u64 << 53) as f64 * all;
        self.cumulated.partition_point(|&upto| upto <= at).min(self.cumulated.len() - 1)
    }
}

/// A reader of a file of one or more zstd frames.
enum Unpacked {
    Between(BufReader<File>),
    Within(Box<StreamingDecoder<BufReader<File>, FrameDecoder>>),
    Failed,
}

impl Read for Unpacked {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        loop {
            match std::mem::replace(self, Self::Failed) {
                Self::Between(mut file) => {
                    if file.fill_buf()?.is_empty() {
                        *self = Self::Between(file);
                        return Ok(0);
                    }
                    let frame = StreamingDecoder::new(file).map_err(io::Error::other)?;
                    *self = Self::Within(Box::new(frame));
                }
                Self::Within(mut frame) => {
                    let count = frame.read(buf)?;
                    if count > 0 || buf.is_empty() {
                        *self = Self::Within(frame);
                        return Ok(count);
                    }
                    *self = Self::Between(frame.into_inner());
                }
                Self::Failed => return Err(io::Error::other("the compressed data was broken before")),
            }
        }
    }
}

fn parse(text: &mut dyn BufRead, shown: &str) -> Result<Trace> {
    let mut numbering = Numbering::default();
    let mut line = String::new();
    for number in 1_u64.. {
        line.clear();
        let bytes =
            text.read_line(&mut line).with_context(|| format!("can't read line {number} of {shown}"))?;
        if bytes == 0 {
            break;
        }
        if line.trim().is_empty() || line.starts_with('#') {
            continue;
        }
        let Some((first, count)) = request(&line) else {
            let mut said: String = line.trim_end().chars().take(60).collect();
            said.extend((said.len() < line.trim_end().len()).then_some('…'));
            bail!("line {number} of {shown} is not a request (first block, number of blocks): {said:?}");
        };
        let so_far = numbering.trace.reads.len() as u64;
        ensure!(
            count <= MOST_READS - so_far,
            "line {number} of {shown}: more than {MOST_READS} reads in all"
        );
        (first..first + count).for_each(|block| numbering.read(block));
    }
    ensure!(!numbering.trace.reads.is_empty(), "{shown} has no request");
    Ok(numbering.trace)
}

/// Parses the first block and the number of blocks.
fn request(line: &str) -> Option<(u64, u64)> {
    let mut words = line.split_ascii_whitespace();
    let first: u64 = words.next()?.parse().ok()?;
    let count: u64 = words.next()?.parse().ok()?;
    first.checked_add(count)?;
    Some((first, count))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Trace> {
        parse(&mut text.as_bytes(), "a.lis")
    }

    #[test]
    fn requests_become_pages_numbered_as_they_come() {
        let trace = parsed("# comment\n700 2 0 0\n\n5 1\n701 3 1 9\n").unwrap();
        assert_eq!(trace.reads, [0, 1, 2, 1, 3, 4]);
        assert_eq!(trace.blocks, [700, 701, 5, 702, 703]);
        let short = trace.shortened(4);
        assert_eq!(
            (short.reads.as_slice(), short.blocks.as_slice()),
            (&[0, 1, 2, 1][..], &[700, 701, 5][..])
        );
    }

    #[test]
    fn a_bad_line_is_named() {
        for (text, part) in [
            ("1 1\n2 x\n", "line 2 of a.lis is not a request (first block, number of blocks): \"2 x\""),
            ("1 1\n\n7\n", "line 3 of a.lis"),
            ("-1 1\n", "line 1 of a.lis"),
            ("18446744073709551615 1\n", "line 1 of a.lis"),
            ("1 1\n0 99999999999\n", "line 2 of a.lis: more than 536870912 reads in all"),
            ("# nothing\n", "a.lis has no request"),
        ] {
            let error = format!("{:#}", parsed(text).unwrap_err());
            assert!(error.contains(part), "{error}");
        }
        let error = format!("{:#}", parse(&mut &b"1 1\n\xff\xfe\n"[..], "a.lis").unwrap_err());
        assert!(error.contains("line 2 of a.lis"), "{error}");
    }

    #[test]
    fn a_compressed_trace_is_read_as_the_plain_one() {
        let dir = tempfile::tempdir().unwrap();
        let text = "7 3 0 0\n8 1 0 1\n";
        let plain = dir.path().join("plain.lis");
        std::fs::write(&plain, text).unwrap();
        let compressed = dir.path().join("P0.zst");
        let packed =
            ruzstd::encoding::compress_to_vec(text.as_bytes(), ruzstd::encoding::CompressionLevel::Fastest);
        std::fs::write(&compressed, &packed).unwrap();
        let (plain, unpacked) = (Trace::open(&plain).unwrap(), Trace::open(&compressed).unwrap());
        assert_eq!(plain.reads, [0, 1, 2, 1]);
        assert_eq!((plain.name.as_str(), unpacked.name.as_str()), ("plain.lis", "P0"));
        assert_eq!((plain.reads, plain.blocks), (unpacked.reads, unpacked.blocks));
        std::fs::write(&compressed, [packed.as_slice(), &packed].concat()).unwrap();
        assert_eq!(Trace::open(&compressed).unwrap().reads, [0, 1, 2, 1, 0, 1, 2, 1]);
        std::fs::write(&compressed, &packed[..packed.len() - 3]).unwrap();
        let error = format!("{:#}", Trace::open(&compressed).unwrap_err());
        assert!(error.contains("P0.zst"), "{error}");
        assert!(format!("{:#}", Trace::open(dir.path()).unwrap_err()).contains("is not a file"));
    }

    #[test]
    fn the_made_up_trace_follows_its_seed_and_its_law() {
        let law = Zipf::new(1000, 0.9);
        let trace = Trace::zipf_with_scans(&law, 20_000, 5);
        assert_eq!(trace.reads, Trace::zipf_with_scans(&law, 20_000, 5).reads);
        assert_ne!(trace.reads, Trace::zipf_with_scans(&law, 20_000, 6).reads);
        // A scan of 100 pages per 500 reads.
        assert_eq!(trace.reads.len(), 24_000);
        let scan: Vec<u64> = trace.reads[500..600].iter().map(|&page| trace.blocks[page as usize]).collect();
        assert!(scan.windows(2).all(|pair| pair[1] == (pair[0] + 1) % 1000));
        let mut counts = vec![0_u32; trace.pages()];
        trace.reads.iter().for_each(|&page| counts[page as usize] += 1);
        counts.sort_unstable_by(|a, b| b.cmp(a));
        // The first rank has 1 / (the sum over 1000 ranks of 1/n^0.9, 10.54) of the reads: 1,898, and a few by scans.
        assert!((1750..2050).contains(&counts[0]), "{}", counts[0]);
        // The second rank has 2^-0.9 of that: 1,017.
        assert!((900..1150).contains(&counts[1]), "{}", counts[1]);
    }
}
