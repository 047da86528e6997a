//! A terminal for one command, whose whole output is read.
//!
//! script(1) stops reading 10 ms after its command has ended (util-linux 2.38), even if the kernel
//! has not handed over all output by then. A read of the terminal's own side ends only after the
//! last byte.

use std::fs::File;
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::pty::{OpenptFlags, openpt, ptsname, unlockpt};

/// A command in a session of its own, controlled by a terminal of its own.
pub(crate) struct PseudoTerminal {
    child: Child,
    keyboard_and_screen: File,
}

impl PseudoTerminal {
    /// Starts a line of the shell.
    pub(crate) fn start(line: &str) -> Self {
        let screen = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        unlockpt(&screen).unwrap();
        let path = ptsname(&screen, Vec::new()).unwrap().into_string().unwrap();
        let open = || {
            let flags = OFlags::NOCTTY.bits().cast_signed();
            File::options().read(true).write(true).custom_flags(flags).open(Path::new(&path)).unwrap()
        };
        // The command is dropped before the first read: it has the terminal open, too.
        let child = Command::new("setsid")
            .args(["--ctty", "sh", "-c", line])
            .env("TERM", "xterm")
            .env_remove("NO_COLOR")
            .stdin(Stdio::from(open()))
            .stdout(Stdio::from(open()))
            .stderr(Stdio::from(open()))
            .spawn()
            .unwrap();
        Self { child, keyboard_and_screen: File::from(screen) }
    }

    /// Presses keys.
    pub(crate) fn type_keys(&mut self, keys: &[u8]) {
        self.keyboard_and_screen.write_all(keys).unwrap();
    }

    /// Reads until the terminal has shown a text.
    pub(crate) fn read_until(&mut self, end: &str) {
        let (mut shown, mut byte) = (Vec::new(), [0]);
        while !shown.ends_with(end.as_bytes()) {
            self.keyboard_and_screen.read_exact(&mut byte).unwrap_or_else(|error| {
                panic!("{end:?} is not shown: {error}: {}", String::from_utf8_lossy(&shown))
            });
            shown.push(byte[0]);
        }
    }

    /// Waits for the command's end; returns its status and the rest of its output.
    pub(crate) fn finish(mut self) -> (ExitStatus, String) {
        let (mut shown, mut part) = (Vec::new(), [0; 4096]);
        loop {
            match self.keyboard_and_screen.read(&mut part) {
                Ok(0) => break,
                Ok(count) => shown.extend_from_slice(&part[..count]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // No process has the terminal open any more.
                Err(error) if Errno::from_io_error(&error) == Some(Errno::IO) => break,
                Err(error) => panic!("{error}: {}", String::from_utf8_lossy(&shown)),
            }
        }
        (self.child.wait().unwrap(), String::from_utf8(shown).unwrap())
    }
}
