//! SQLite's rollback journal, which is not needed after a crash any more. It lives in memory and,
//! past a limit, in a file without a name.
//!
//! SQLite uses it as usual: it reads the journal to roll back within the process, and ends a
//! transaction by deleting the journal, truncating it to nothing or zeroing its header. That end is
//! the commit.
//!
//! Invariant: a journal is *live* from the write of its header until then. While one is live,
//! nothing of its transaction is in the log.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

/// The start of a journal's header.
const JOURNAL_MAGIC: [u8; 8] = [0xd9, 0xd5, 0x05, 0xf9, 0x20, 0xa1, 0x63, 0xd7];
/// Bytes kept in memory.
const MEMORY_BYTES_MAX: usize = 8 << 20;

/// The effect of a write to a journal on its transaction.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum WriteEffect {
    /// The first write of the transaction: the journal is live from here on.
    Begin,
    /// The transaction is over.
    End,
    /// The transaction spans several files. Its commit is the deletion of a file that this journal
    /// names.
    SeveralFiles,
    Nothing,
}

pub(crate) fn meaning(bytes: &[u8], offset: u64) -> WriteEffect {
    match offset {
        0 if bytes.starts_with(&JOURNAL_MAGIC) => WriteEffect::Begin,
        0 if bytes.first() == Some(&0) => WriteEffect::End,
        // The end of that file's name. A later header is written together with the padding of its
        // sector.
        1.. if bytes == JOURNAL_MAGIC => WriteEffect::SeveralFiles,
        _ => WriteEffect::Nothing,
    }
}

/// The content of a journal.
#[derive(Default)]
pub(crate) struct Journal {
    memory: Vec<u8>,
    /// All of the content, once it is long.
    file: Option<File>,
    pub(crate) is_live: bool,
}

impl Journal {
    pub(crate) fn size(&self) -> io::Result<u64> {
        match &self.file {
            Some(file) => Ok(file.metadata()?.len()),
            None => Ok(self.memory.len() as u64),
        }
    }

    /// Reads, and fills bytes past the end with zeros. Returns whether all bytes existed.
    pub(crate) fn read(&self, buffer: &mut [u8], offset: u64) -> io::Result<bool> {
        let mut read = 0;
        if let Some(file) = &self.file {
            while read < buffer.len() {
                match file.read_at(&mut buffer[read..], offset + read as u64)? {
                    0 => break,
                    more => read += more,
                }
            }
        } else {
            let start = usize::try_from(offset).unwrap_or(usize::MAX).min(self.memory.len());
            let there = &self.memory[start..];
            read = there.len().min(buffer.len());
            buffer[..read].copy_from_slice(&there[..read]);
        }
        buffer[read..].fill(0);
        Ok(read == buffer.len())
    }

    /// Writes bytes; `beside` is the directory for a nameless file.
    pub(crate) fn write(&mut self, bytes: &[u8], offset: u64, beside: &Path) -> io::Result<()> {
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let end = start.saturating_add(bytes.len());
        if self.file.is_none() && end <= MEMORY_BYTES_MAX {
            if self.memory.len() < end {
                self.memory.resize(end, 0);
            }
            self.memory[start..end].copy_from_slice(bytes);
            return Ok(());
        }
        let file = match &mut self.file {
            Some(file) => file,
            none => {
                let file = tempfile::tempfile_in(beside)?;
                file.write_all_at(&self.memory, 0)?;
                self.memory = Vec::new();
                none.insert(file)
            }
        };
        file.write_all_at(bytes, offset)
    }

    pub(crate) fn truncate(&mut self, size: u64) -> io::Result<()> {
        match &self.file {
            Some(_) if size == 0 => self.file = None,
            Some(file) => file.set_len(size)?,
            None => self.memory.truncate(usize::try_from(size).unwrap_or(usize::MAX)),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_journal_reads_as_a_short_one() {
        let dir = pagekeeper_testing::disk_dir();
        let mut journal = Journal::default();
        let page = |at: usize| vec![u8::try_from(at % 255).unwrap(); 1000];
        let pages = MEMORY_BYTES_MAX / 1000 + 20;
        for at in 0..pages {
            journal.write(&page(at), at as u64 * 1000, dir.path()).unwrap();
        }
        assert!(journal.file.is_some() && journal.size().unwrap() == pages as u64 * 1000);
        for at in [0, 1, pages / 2, pages - 1] {
            let mut read = vec![1; 1000];
            assert!(journal.read(&mut read, at as u64 * 1000).unwrap());
            assert_eq!(read, page(at));
        }
        let mut past = [7; 10];
        assert!(!journal.read(&mut past, pages as u64 * 1000 - 5).unwrap());
        assert_eq!(past[5..], [0; 5]);
        journal.truncate(0).unwrap();
        assert_eq!(journal.size().unwrap(), 0);
    }

    #[test]
    fn begin_end_and_a_name_of_another_file_are_distinct() {
        let mut header = vec![0; 512];
        header[..8].copy_from_slice(&JOURNAL_MAGIC);
        assert_eq!(meaning(&header, 0), WriteEffect::Begin);
        assert_eq!(meaning(&header, 4096), WriteEffect::Nothing);
        assert_eq!(meaning(&JOURNAL_MAGIC, 4096), WriteEffect::SeveralFiles);
        assert_eq!(meaning(&[0; 28], 0), WriteEffect::End);
        assert_eq!(meaning(&[0; 28], 512), WriteEffect::Nothing);
    }
}
