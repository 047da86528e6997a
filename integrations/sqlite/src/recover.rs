//! Recovery of a file that was left marked: the commits of its log are redone, and the log's
//! records are released before anything else happens.
//!
//! Invariants:
//! 1. Nothing is changed before the check that the log belongs to the file at this time: it has the
//!    length record with the file's mark.
//! 2. All commits from that record on are redone. To redo a commit twice does no harm.
//! 3. The file is synced, with a new mark, before a commit is accepted. So the mark is durable
//!    before the first commit is, however the last process ended, and a record that names the spill
//!    file is obsolete before that file is written again.
//!
//! A crash or an error in the middle leaves file and log for the next attempt: the mark stays, and
//! no record is released.

use std::collections::btree_map::{BTreeMap, Entry};
use std::fs::File;

use pagekeeper_text::escaped;
use pagekeeper_wal::Error as LogError;

use crate::abi;
use crate::mark;
use crate::pending;
use crate::places::Places;
use crate::real::RealFile;
use crate::record::{self, BLOCK, BLOCK_BYTES, Block, Commit, Content};
use crate::session::{Failure, Session, cut, options, put_mark};

impl Session {
    /// Recovers a file that has this mark.
    pub(crate) fn recover(file: &mut RealFile, places: &Places, mark: u64) -> Result<Self, Failure> {
        let missing = |why: &str| {
            let log = places.log();
            let log = escaped(&log);
            Failure::cant_open(format!(
                "this database has commits in its log, {log}, which can't be used: {why}"
            ))
        };
        if !file.is_writable {
            let why = Some("this database has commits in its log, and can't be written".to_owned());
            return Err(Failure::Refused(abi::READONLY_RECOVERY, why));
        }
        if let Ok(false) = places.log().try_exists() {
            return Err(missing("it does not exist"));
        }
        let directory = places.check()?;
        let (log, records) =
            options().recover(places.log(), None).map_err(|error| missing_log(&error, &missing))?;
        let mut commits = Vec::with_capacity(records.len());
        for record in &records {
            let commit = record::decode(&record.body)
                .ok_or_else(|| missing(&format!("the record at LSN {} is no commit", record.lsn)))?;
            commits.push(commit);
        }
        let first = commits
            .iter()
            .rposition(|commit| commit.content == Content::Length { mark })
            .ok_or_else(|| missing("it is another database's, or of another time than this file"))?;
        let mut redo = RedoPass { file, directory: &directory, mark, blocks: BTreeMap::new() };
        let mut size = commits[first].size;
        for commit in &commits[first..] {
            if commit.size < size {
                redo.cut(commit.size)?;
            }
            size = commit.size;
            if !redo.take(commit)? {
                return Err(missing("its spill file is not the one it had"));
            }
        }
        redo.flush()?;
        let real = file.size()?;
        let mut session = Self::new((log, directory), places, size, real);
        session.mark = mark;
        session.reserve(file, size)?;
        session.checkpoint(file)?;
        Ok(session)
    }
}

fn missing_log(error: &LogError, missing: &impl Fn(&str) -> Failure) -> Failure {
    match (Failure::of_log(error), missing(&error.to_string())) {
        // Another process has it open, and may be about to close it.
        (Failure::Refused(abi::BUSY, _), Failure::Refused(_, why)) => Failure::Refused(abi::BUSY, why),
        (_, missing) => missing,
    }
}

/// Commits that are being redone.
struct RedoPass<'a> {
    file: &'a mut RealFile,
    /// The directory of the log.
    directory: &'a File,
    mark: u64,
    blocks: BTreeMap<u64, Box<Block>>,
}

impl RedoPass<'_> {
    /// Adds a commit's blocks. Returns `Ok(false)` if its spill file does not exist any more.
    fn take(&mut self, commit: &Commit<'_>) -> Result<bool, Failure> {
        match &commit.content {
            Content::Length { .. } => Ok(true),
            Content::Ranges(ranges) => {
                for &(number, start, bytes) in ranges {
                    let block = match self.blocks.entry(number) {
                        Entry::Occupied(block) => block.into_mut(),
                        Entry::Vacant(none) => {
                            let mut block = Box::new([0; BLOCK]);
                            if bytes.len() < BLOCK {
                                self.file.read(&mut block[..], number * BLOCK_BYTES)?;
                                take_off_if_marked(&mut block, number);
                            }
                            none.insert(block)
                        }
                    };
                    block[start..start + bytes.len()].copy_from_slice(bytes);
                }
                Ok(true)
            }
            &Content::Spilled { blocks, index } => {
                let end = commit.size.div_ceil(BLOCK_BYTES);
                pending::unseal(self.directory, blocks, index, |number, block| {
                    if number >= end {
                        return Err(Failure::cant_open("the spill file has a block past the database's end"));
                    }
                    self.blocks.insert(number, Box::new(*block));
                    if self.blocks.len() >= pending::MEMORY_BLOCKS_MAX { self.flush() } else { Ok(()) }
                })
            }
        }
    }

    /// Writes the blocks, and forgets them.
    fn flush(&mut self) -> Result<(), Failure> {
        for (number, mut block) in std::mem::take(&mut self.blocks) {
            put_mark(&mut block, number, self.mark);
            self.file.write(&block[..], number * BLOCK_BYTES)?;
        }
        Ok(())
    }

    /// Truncates the file. Its pages may be shorter than blocks, which are written completely:
    /// bytes past the end must not return.
    fn cut(&mut self, size: u64) -> Result<(), Failure> {
        self.flush()?;
        let mut real = self.file.size()?;
        Ok(cut(self.file, &mut real, size)?)
    }
}

fn take_off_if_marked(block: &mut Block, number: u64) {
    if number == 0 && mark::of(&block[..]).is_some() {
        mark::take_off(&mut block[..], 0);
    }
}
