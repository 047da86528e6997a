//! Facts from an executable: its machine, its loader, and whether Go made it.
//!
//! Invariants: it reads little, whatever the file claims (headers, notes and section names, each up to a limit).
//! It never panics, and treats invalid data as absent. Layout: elf(5); `.go.buildinfo` and Go's note: package
//! `debug/buildinfo` and `cmd/link` of Go. Fails only if the file can't be read.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

const HEADER: usize = 64;
const PROGRAM_HEADER: usize = 56;
const SECTION_HEADER: usize = 64;
const PT_INTERP: u32 = 3;
const PT_NOTE: u32 = 4;
/// The build ID of Go's linker, in notes of the owner "Go".
const NT_GO_BUILD_ID: u32 = 4;
/// Maximum number of program and section headers read: real files have dozens.
const HEADERS_MAX: usize = 4096;
/// Maximum bytes read of a loader's path, of a note, and of all section names.
const TEXT_MAX: u64 = 64 << 10;

/// The machine type of this program itself; a program it starts must have the same to load the library.
const OWN_MACHINE: u16 = if cfg!(target_arch = "aarch64") { 183 } else { 62 };

/// An executable for this machine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Program {
    /// Its loader; `None` if it is statically linked.
    pub(crate) loader: Option<Vec<u8>>,
    /// Whether Go made it: it then makes its own system calls.
    pub(crate) go: bool,
}

/// The kind of a file, from its first bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum FileKind {
    /// For this machine.
    Native(Program),
    /// For another machine, or 32-bit.
    Foreign,
    /// Not ELF.
    Other,
}

/// Returns the kind of a program file.
pub(crate) fn inspect(file: &File) -> io::Result<FileKind> {
    let header = read(file, 0, HEADER)?;
    if !header.starts_with(b"\x7fELF") {
        return Ok(FileKind::Other);
    }
    // Class 2 is 64 bits, data 1 is little-endian.
    if header.len() < HEADER || header[4] != 2 || header[5] != 1 || word16(&header, 18) != OWN_MACHINE {
        return Ok(FileKind::Foreign);
    }
    let mut program = Program::default();
    for segment in table(file, &header, 32, 54, 56, PROGRAM_HEADER)?.chunks_exact(PROGRAM_HEADER) {
        let (offset, size) = (word64(segment, 8), word64(segment, 32));
        match word32(segment, 0) {
            PT_INTERP => {
                let mut path = text(file, offset, size)?;
                path.truncate(path.iter().position(|&byte| byte == 0).unwrap_or(path.len()));
                program.loader = Some(path);
            }
            PT_NOTE => program.go |= has_go_note(&text(file, offset, size)?),
            _ => {}
        }
    }
    program.go = program.go || has_go_section(file, &header)?;
    Ok(FileKind::Native(program))
}

/// Returns a table of headers; the ELF header has its offset, entry size and count at these positions. Empty if
/// the entry size is unexpected.
fn table(
    file: &File,
    header: &[u8],
    offset: usize,
    size: usize,
    number: usize,
    expected: usize,
) -> io::Result<Vec<u8>> {
    if usize::from(word16(header, size)) != expected {
        return Ok(Vec::new());
    }
    let number = usize::from(word16(header, number)).min(HEADERS_MAX);
    read(file, word64(header, offset), number * expected)
}

fn has_go_note(notes: &[u8]) -> bool {
    let mut rest = notes;
    while rest.len() >= 12 {
        let (name, description) = (word32(rest, 0) as usize, word32(rest, 4) as usize);
        if word32(rest, 8) == NT_GO_BUILD_ID && rest[12..].starts_with(b"Go\0\0") && name == 4 {
            return true;
        }
        let padded = |length: usize| length.saturating_add(3) & !3;
        let next = padded(name).saturating_add(padded(description)).saturating_add(12);
        rest = rest.get(next..).unwrap_or_default();
    }
    false
}

fn has_go_section(file: &File, header: &[u8]) -> io::Result<bool> {
    let sections = table(file, header, 40, 58, 60, SECTION_HEADER)?;
    let mut sections = sections.chunks_exact(SECTION_HEADER);
    let Some(names) = sections.clone().nth(usize::from(word16(header, 62))) else { return Ok(false) };
    let names = text(file, word64(names, 24), word64(names, 32))?;
    Ok(sections.any(|section| {
        let name = names.get(word32(section, 0) as usize..).unwrap_or_default();
        name.starts_with(b".go.buildinfo\0")
    }))
}

fn text(file: &File, offset: u64, size: u64) -> io::Result<Vec<u8>> {
    read(file, offset, usize::try_from(size.min(TEXT_MAX)).expect("TEXT_MAX is small"))
}

/// Reads as much of a range as exists.
fn read(file: &File, offset: u64, length: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; length];
    let mut done = 0;
    // An offset that the kernel would reject is past every file's end.
    while done < length && offset.checked_add(length as u64).is_some_and(|end| i64::try_from(end).is_ok()) {
        match file.read_at(&mut bytes[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(more) => done += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    bytes.truncate(done);
    Ok(bytes)
}

fn word<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes.get(at..at + N).and_then(|bytes| bytes.try_into().ok()).unwrap_or([0; N])
}

fn word16(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(word(bytes, at))
}

fn word32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(word(bytes, at))
}

fn word64(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(word(bytes, at))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::Write;

    fn kind(bytes: &[u8]) -> FileKind {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        inspect(&file).unwrap()
    }

    /// Returns this test itself, as the linker wrote it.
    fn own() -> Vec<u8> {
        // Segments come first, sections last: these tests concern segments.
        read(&File::open("/proc/self/exe").unwrap(), 0, 1 << 14).unwrap()
    }

    #[test]
    fn a_program_of_this_machine_names_its_loader() {
        let kind = inspect(&File::open("/proc/self/exe").unwrap()).unwrap();
        let FileKind::Native(Program { loader: Some(loader), go: false }) = kind else { panic!("{kind:?}") };
        assert!(std::path::Path::new(std::str::from_utf8(&loader).unwrap()).exists());
    }

    #[test]
    fn others_are_distinguished() {
        assert_eq!(kind(b""), FileKind::Other);
        assert_eq!(kind(b"#!/bin/sh\n"), FileKind::Other);
        assert_eq!(kind(b"\x7fELF"), FileKind::Foreign);
        let own = own();
        for (at, byte) in [(4, 1), (5, 2), (18, 3)] {
            let mut other = own.clone();
            other[at] = byte;
            assert_eq!(kind(&other), FileKind::Foreign, "{at}");
        }
        // No program headers: nothing requests a loader.
        let mut bare = own;
        bare[56..58].fill(0);
        assert_eq!(kind(&bare), FileKind::Native(Program::default()));
    }

    #[test]
    fn go_is_known_by_its_note() {
        let note = |owner: &[u8; 4], kind: u32| {
            let mut bytes = Vec::new();
            bytes.extend_from_slice(&[4, 0, 0, 0, 3, 0, 0, 0, 1, 0, 0, 0]);
            bytes.extend_from_slice(b"GNU\0abc\0");
            bytes.extend_from_slice(&[4, 0, 0, 0, 0, 0, 0, 0]);
            bytes.extend_from_slice(&kind.to_le_bytes());
            bytes.extend_from_slice(owner);
            bytes
        };
        assert!(has_go_note(&note(b"Go\0\0", 4)));
        assert!(!has_go_note(&note(b"Go\0\0", 3)));
        assert!(!has_go_note(&note(b"GNU\0", 4)));
        assert!(!has_go_note(&[0xff; 64]));
    }

    proptest! {
        #[test]
        fn no_file_is_too_odd(places in proptest::collection::vec((0_usize..1 << 12, any::<u8>()), 0..64)) {
            let mut bytes = own();
            for (at, byte) in places {
                bytes[at] = byte;
            }
            kind(&bytes);
        }

        #[test]
        fn no_header_is_too_odd(rest in proptest::collection::vec(any::<u8>(), 58..200)) {
            let mut bytes = b"\x7fELF\x02\x01".to_vec();
            bytes.extend(rest);
            bytes[18..20].copy_from_slice(&OWN_MACHINE.to_le_bytes());
            bytes[54..56].copy_from_slice(&56_u16.to_le_bytes());
            bytes[58..60].copy_from_slice(&64_u16.to_le_bytes());
            kind(&bytes);
        }
    }
}
