//! The file of a program: whether its loader loads the library, by its ELF headers, its script's
//! interpreter and its privileges.
//!
//! Invariants: little is read, whatever the file claims; nothing is allocated, and nothing panics.
//! Invalid data counts as absent. Layout: elf(5); `.go.buildinfo` and Go's note: package
//! `debug/buildinfo` and `cmd/link` of Go.

use libc::c_int;

use crate::sys;

/// The machine type of this program itself; another program must have the same to load the library.
const OWN_MACHINE: u64 = if cfg!(target_arch = "aarch64") { 183 } else { 62 };
/// Bytes of a program header, and of a section header.
const PROGRAM_HEADER: u64 = 56;
const SECTION_HEADER: usize = 64;
/// The build id of Go's linker: note type 4, before the owner's name of 4 bytes.
const GO_NOTE: &[u8] = b"\x04\0\0\0Go\0\0";
/// The name of the section in which Go describes a program.
const GO_SECTION: &[u8] = b".go.buildinfo\0";
/// Maximum bytes read of the program headers, a loader's path, a note, and the names of sections.
/// Real files have less. Two such buffers are on the stack, which may be small.
const READ_BYTES: usize = 1024;

/// The kind of a file, as a loader sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExecutableKind {
    /// A program that loads the library, unless it is privileged.
    Loads,
    /// A program without a loader.
    Static,
    /// A program that Go made: it makes its own system calls.
    Go,
    /// A program for musl's loader, while the library needs glibc.
    Musl,
    /// A program for another machine, or a 32-bit one.
    Foreign,
    /// No ELF file: a script, or not executable.
    Other,
}

/// Reads bytes of a file from an offset on, and returns their number.
type ReadAt<'a> = &'a dyn Fn(u64, &mut [u8]) -> usize;

/// Returns the number at a place, little-endian; 0 if there is none.
fn number(bytes: &[u8], at: usize, length: usize) -> u64 {
    let bytes = bytes.get(at..at + length).unwrap_or_default();
    bytes.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte))
}

/// Reads the part of a file that a header names by its offset and size, as far as there is room.
fn part<'a>(read_at: ReadAt<'_>, (offset, size): (u64, u64), into: &'a mut [u8; READ_BYTES]) -> &'a [u8] {
    let length = size.min(READ_BYTES as u64) as usize;
    let got = into.get_mut(..length).map_or(0, |into| read_at(offset, into));
    into.get(..got).unwrap_or_default()
}

/// Returns the last name of a path.
pub(crate) fn base(path: &[u8]) -> &[u8] {
    path.rsplit(|&byte| byte == b'/').next().unwrap_or(path)
}

/// Determines the kind of a file.
pub fn kind(read_at: ReadAt<'_>) -> ExecutableKind {
    let mut header = [0; 64];
    let got = read_at(0, &mut header);
    if !header.starts_with(b"\x7fELF") {
        return ExecutableKind::Other;
    }
    // Class 2 is 64 bits, data 1 is little-endian.
    if got < header.len() || number(&header, 4, 2) != 0x0102 || number(&header, 18, 2) != OWN_MACHINE {
        return ExecutableKind::Foreign;
    }
    let (mut headers, mut bytes) = ([0; READ_BYTES], [0; READ_BYTES]);
    let (mut loader, mut is_go) = (ExecutableKind::Static, has_go_section(&header, read_at, &mut bytes));
    let segments = (number(&header, 32, 8), PROGRAM_HEADER * number(&header, 56, 2));
    let segments = part(read_at, segments, &mut headers);
    let is_known = number(&header, 54, 2) == PROGRAM_HEADER;
    for segment in segments.chunks_exact(PROGRAM_HEADER as usize).filter(|_| is_known) {
        let place = (number(segment, 8, 8), number(segment, 32, 8));
        match number(segment, 0, 4) as u32 {
            libc::PT_INTERP => {
                loader = match base(part(read_at, place, &mut bytes)) {
                    b"" => ExecutableKind::Static,
                    name if name.starts_with(b"ld-musl-") => ExecutableKind::Musl,
                    _ => ExecutableKind::Loads,
                }
            }
            libc::PT_NOTE => {
                let notes = part(read_at, place, &mut bytes);
                is_go |= notes.windows(GO_NOTE.len()).any(|bytes| bytes == GO_NOTE);
            }
            _ => {}
        }
    }
    if is_go { ExecutableKind::Go } else { loader }
}

fn has_go_section(header: &[u8], read_at: ReadAt<'_>, names: &mut [u8; READ_BYTES]) -> bool {
    let at = number(header, 40, 8).saturating_add(SECTION_HEADER as u64 * number(header, 62, 2));
    let mut section = [0; SECTION_HEADER];
    let is_there = read_at(at, &mut section) == SECTION_HEADER;
    let names = part(read_at, (number(&section, 24, 8), number(&section, 32, 8)), names);
    is_there && names.windows(GO_SECTION.len()).any(|name| name == GO_SECTION)
}

/// Returns the program that a script's first line names.
pub(crate) fn interpreter(start: &[u8]) -> Option<&[u8]> {
    let line = start.strip_prefix(b"#!")?.split(|&byte| byte == b'\n').next()?;
    line.split(|byte| matches!(byte, b' ' | b'\t')).find(|word| !word.is_empty())
}

/// Whether a program gets privileges that this process does not have (`AT_SECURE`). Its loader then
/// ignores preloads that it does not trust.
pub fn is_privileged(stat: &libc::stat, fd: Option<c_int>) -> bool {
    const SETGID_BITS: u32 = libc::S_ISGID | libc::S_IXGRP;
    // SAFETY: no pointers.
    let id = |number| unsafe { sys::call(number, []) }.unwrap_or(0) as u32;
    let user = id(libc::SYS_getuid);
    let has_capabilities = |fd| {
        let args = [fd as usize, c"security.capability".as_ptr() as usize, 0, 0];
        // SAFETY: a name, and no buffer: only the length is queried.
        unsafe { sys::call(libc::SYS_fgetxattr, args) }.is_ok()
    };
    stat.st_mode & libc::S_ISUID != 0 && stat.st_uid != user
        || stat.st_mode & SETGID_BITS == SETGID_BITS && stat.st_gid != id(libc::SYS_getgid)
        || user != 0 && fd.is_some_and(has_capabilities)
}

#[cfg(all(test, not(feature = "interpose")))]
mod tests {
    use std::cell::Cell;
    use std::fs::File;
    use std::os::unix::fs::FileExt as _;

    use proptest::prelude::*;

    use super::*;

    fn read_of(bytes: &[u8], at: u64, into: &mut [u8]) -> usize {
        let from = usize::try_from(at).ok().and_then(|at| bytes.get(at..)).unwrap_or_default();
        let length = into.len().min(from.len());
        into[..length].copy_from_slice(&from[..length]);
        length
    }

    fn kind_of(bytes: &[u8]) -> ExecutableKind {
        kind(&|at, into| read_of(bytes, at, into))
    }

    /// Returns the start of this test itself, as the linker wrote it: segments come first, sections
    /// last.
    fn own() -> Vec<u8> {
        let mut bytes = vec![0; 1 << 14];
        File::open("/proc/self/exe").unwrap().read_exact_at(&mut bytes, 0).unwrap();
        bytes
    }

    #[test]
    fn programs_are_distinguished() {
        assert_eq!(kind_of(&std::fs::read("/proc/self/exe").unwrap()), ExecutableKind::Loads);
        assert_eq!((kind_of(b""), kind_of(b"#!/bin/sh\n")), (ExecutableKind::Other, ExecutableKind::Other));
        assert_eq!(
            (kind_of(b"\x7fELF"), kind_of(&own()[..60])),
            (ExecutableKind::Foreign, ExecutableKind::Foreign)
        );
        for (at, byte) in [(4, 1), (5, 2), (18, 3)] {
            let mut other = own();
            other[at] = byte;
            assert_eq!(kind_of(&other), ExecutableKind::Foreign, "{at}");
        }
        // Without program headers nothing asks for a loader.
        let mut bare = own();
        bare[56..58].fill(0);
        assert_eq!(kind_of(&bare), ExecutableKind::Static);
    }

    #[test]
    fn the_kind_follows_from_notes_loader_and_sections() {
        // A header, an interpreter at 300, a note at 400, a section header at 500, and its names at
        // 600.
        let program = |interpreter: &[u8], note: &[u8], names: &[u8]| {
            let mut bytes = vec![0; 700];
            bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
            bytes[18] = OWN_MACHINE as u8;
            (bytes[32], bytes[54], bytes[56]) = (64, 56, 2);
            bytes[40..42].copy_from_slice(&500_u16.to_le_bytes());
            let mut segment = |at: usize, kind: u8, offset: u16, size: usize| {
                bytes[at] = kind;
                bytes[at + 8..at + 10].copy_from_slice(&offset.to_le_bytes());
                bytes[at + 32] = size as u8;
            };
            segment(64, 3, 300, interpreter.len());
            segment(120, 4, 400, note.len());
            segment(516, 0, 600, 0);
            bytes[532] = names.len() as u8;
            for (at, part) in [(300, interpreter), (400, note), (600, names)] {
                bytes[at..at + part.len()].copy_from_slice(part);
            }
            kind_of(&bytes)
        };
        let glibc = b"/lib64/ld-linux-x86-64.so.2\0";
        assert_eq!(program(glibc, b"", b""), ExecutableKind::Loads);
        assert_eq!(program(b"", b"", b""), ExecutableKind::Static);
        assert_eq!(program(b"/lib/ld-musl-x86_64.so.1\0", b"", b""), ExecutableKind::Musl);
        let go = b"\x04\0\0\0\x53\0\0\0\x04\0\0\0Go\0\0id";
        assert_eq!(
            (program(glibc, go, b""), program(b"", go, b"")),
            (ExecutableKind::Go, ExecutableKind::Go)
        );
        assert_eq!(program(glibc, b"\x04\0\0\0\x14\0\0\0\x03\0\0\0Go\0\0id", b""), ExecutableKind::Loads);
        assert_eq!(program(glibc, b"\x04\0\0\0\x14\0\0\0\x03\0\0\0GNU\0id", b""), ExecutableKind::Loads);
        assert_eq!(program(glibc, b"", b".text\0.go.buildinfo\0"), ExecutableKind::Go);
    }

    #[test]
    fn its_buffers_fit_a_small_stack() {
        const STACK_MAX: usize = 4096;
        let bytes = own();
        let lowest = Cell::new(usize::MAX);
        let highest = core::ptr::from_ref(&lowest).addr();
        kind(&|at, into| {
            lowest.set(lowest.get().min(into.as_ptr().addr()));
            read_of(&bytes, at, into)
        });
        assert!(highest - lowest.get() < STACK_MAX, "{}", highest - lowest.get());
    }

    proptest! {
        #[test]
        fn random_files_are_handled(places in proptest::collection::vec((0_usize..1 << 12, any::<u8>()), 0..64)) {
            let mut bytes = own();
            for (at, byte) in places {
                bytes[at] = byte;
            }
            kind_of(&bytes);
        }

        #[test]
        fn random_headers_are_handled(rest in proptest::collection::vec(any::<u8>(), 58..200)) {
            let mut bytes = b"\x7fELF\x02\x01".to_vec();
            bytes.extend(rest);
            bytes[18..20].copy_from_slice(&(OWN_MACHINE as u16).to_le_bytes());
            bytes[54..56].copy_from_slice(&56_u16.to_le_bytes());
            bytes[58..60].copy_from_slice(&64_u16.to_le_bytes());
            kind_of(&bytes);
        }
    }
}
