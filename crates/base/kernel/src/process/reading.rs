//! Reads files of `/proc` and `/sys`. Other users choose part of their contents (names, paths,
//! mount options, titles), and its size.
//!
//! Invariants: text is bytes, valid UTF-8 or not. No file takes more memory than
//! [`FILE_BYTES_MAX`]. An invalid line hides no other line.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use pagekeeper_text::{escaped_bytes, unescaped_bytes};

use crate::{Error, Result};

/// Maximum number of bytes read from a file. The kernel's own text is far shorter, but a title or a
/// list of locks may be long.
const FILE_BYTES_MAX: u64 = 4 << 20;
/// Usual maximum length in bytes of a file such as `/proc/PID/status` and `stat`.
const USUAL_FILE_BYTES: usize = 2 << 10;
/// Maximum number of bytes read from a list with one line per mapping or mount: a quarter of a
/// million usual lines.
const LIST_BYTES_MAX: u64 = 32 << 20;
/// Maximum length of a line in bytes; longer ones are skipped.
const LINE_BYTES_MAX: u64 = 1 << 20;

/// Reads a file of `/proc` or `/sys`, at most [`FILE_BYTES_MAX`] bytes of it.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>> {
    read_start(path, FILE_BYTES_MAX)
}

/// Reads the first `max` bytes of a file of `/proc` or `/sys`.
#[allow(clippy::disallowed_methods, reason = "of /proc or /sys")]
pub(super) fn read_start(path: &Path, max: u64) -> Result<Vec<u8>> {
    // Most files are read by one call, and their end by another.
    let mut content = Vec::with_capacity(USUAL_FILE_BYTES);
    let read = File::open(path).and_then(|file| file.take(max).read_to_end(&mut content));
    read.map_err(|error| Error::call("read", path, error))?;
    Ok(content)
}

/// Reads a file of `/proc` or `/sys` that consists of text.
pub(crate) fn read_text(path: &Path) -> Result<String> {
    Ok(unescaped_bytes(&read(path)?).into_owned())
}

/// Passes each line to `parse`, without its line end, and skips those that can't be parsed
/// (`None`). If no line can be parsed, the kernel's format is unknown: returns an
/// [`Error::Malformed`] with the first line.
#[allow(clippy::disallowed_methods, reason = "of /proc")]
pub(super) fn each_line(path: &Path, mut parse: impl FnMut(&[u8]) -> Option<()>) -> Result<()> {
    let failed = |error| Error::call("read", path, error);
    let mut reader =
        BufReader::with_capacity(64 << 10, File::open(path).map_err(failed)?.take(LIST_BYTES_MAX));
    let (mut line, mut understood, mut odd) = (Vec::new(), false, None);
    loop {
        line.clear();
        let read = reader.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line).map_err(failed)?;
        if read == 0 {
            break;
        }
        let whole = line.pop_if(|last| *last == b'\n').is_some();
        if !whole && read as u64 == LINE_BYTES_MAX {
            reader.skip_until(b'\n').map_err(failed)?;
        } else if line.is_empty() {
            continue;
        } else if parse(&line).is_some() {
            understood = true;
            continue;
        }
        odd.get_or_insert_with(|| malformed(path, &line[..line.len().min(200)]));
    }
    odd.filter(|_| !understood).map_or(Ok(()), Err)
}

/// Returns an [`Error::Malformed`] about a line or field.
pub(crate) fn malformed(path: &Path, what: impl AsRef<[u8]>) -> Error {
    Error::Malformed { path: path.to_path_buf(), what: escaped_bytes(what.as_ref()).to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(content: &[u8]) -> Result<Vec<Vec<u8>>> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), content).unwrap();
        let mut lines = Vec::new();
        each_line(file.path(), |line| (!line.starts_with(b"!")).then(|| lines.push(line.to_vec())))?;
        Ok(lines)
    }

    #[test]
    fn a_line_that_is_not_understood_hides_no_other() {
        assert_eq!(lines(b"a\n\n!\n\xff b\nc").unwrap(), [&b"a"[..], b"\xff b", b"c"]);
        assert_eq!(lines(b"").unwrap(), [&b""[..]; 0]);
        let error = lines(b"!x\n!y\n").unwrap_err();
        assert!(error.to_string().ends_with("can't read !x"), "{error}");
    }

    #[test]
    fn a_line_without_an_end_is_passed_over_and_a_file_without_an_end_is_cut() {
        let long = vec![b'x'; usize::try_from(LINE_BYTES_MAX).unwrap() + 5];
        assert_eq!(lines(&[b"a\n", &long[..], b"\nb\n"].concat()).unwrap(), [b"a", b"b"]);
        assert!(lines(&long).is_err());
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(FILE_BYTES_MAX + 1).unwrap();
        assert_eq!(read(file.path()).unwrap().len() as u64, FILE_BYTES_MAX);
        file.as_file().set_len(LIST_BYTES_MAX * 4).unwrap();
        assert!(each_line(file.path(), |_| Some(())).is_err());
    }
}
