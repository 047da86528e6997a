//! A terminal for programs that need one: a tmux server of its own, whose screen can be read.
//!
//! Invariant: the server ends with the value, and all that runs in it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::eventually;

/// A deadline far longer than anything on a screen should take.
const RUN_TIMEOUT: Duration = Duration::from_secs(60);

/// A terminal with a shell in it.
pub(crate) struct Terminal {
    socket: PathBuf,
}

impl Terminal {
    /// Starts a terminal of this size. `dir` is for its socket.
    pub(crate) fn new(dir: &Path, columns: u16, rows: u16) -> Self {
        static NEXT_NUMBER: AtomicU32 = AtomicU32::new(0);
        let socket = dir.join(format!("tmux-{}", NEXT_NUMBER.fetch_add(1, Ordering::Relaxed)));
        let terminal = Self { socket };
        let size = [columns.to_string(), rows.to_string()];
        // A shell without the user's configuration, and with a known prompt.
        let shell = "env PS1='ready> ' LC_ALL=C.UTF-8 bash --norc --noprofile";
        terminal.tmux(&["-f", "/dev/null", "new-session", "-d", "-x", &size[0], "-y", &size[1], shell]);
        terminal.wait_for("ready>");
        terminal
    }

    fn tmux(&self, arguments: &[&str]) -> String {
        let output = Command::new("tmux")
            .arg("-S")
            .arg(&self.socket)
            .args(arguments)
            .env_remove("TMUX")
            .env("LC_ALL", "C.UTF-8")
            .output()
            .expect("run tmux");
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Presses keys, by the names that tmux has for them.
    pub(crate) fn press(&self, keys: &[&str]) {
        self.tmux(&[&["send-keys"], keys].concat());
    }

    /// Types text.
    pub(crate) fn write(&self, text: &str) {
        self.tmux(&["send-keys", "-l", text]);
    }

    /// Types text, and Enter.
    pub(crate) fn enter(&self, text: &str) {
        self.write(text);
        self.press(&["Enter"]);
    }

    /// Returns the text on the screen.
    pub(crate) fn screen(&self) -> String {
        self.tmux(&["capture-pane", "-p"])
    }

    /// Returns the screen with colours as escape sequences.
    pub(crate) fn screen_in_colour(&self) -> String {
        self.tmux(&["capture-pane", "-p", "-e"])
    }

    /// Whether a program has switched to the terminal's other screen.
    pub(crate) fn on_other_screen(&self) -> bool {
        self.tmux(&["display-message", "-p", "#{alternate_on}"]).trim() == "1"
    }

    pub(crate) fn resize(&self, columns: u16, rows: u16) {
        self.tmux(&["resize-window", "-x", &columns.to_string(), "-y", &rows.to_string()]);
    }

    /// Returns the shell's current child process.
    pub(crate) fn child(&self) -> u32 {
        let shell = self.tmux(&["display-message", "-p", "#{pane_pid}"]);
        let shell = shell.trim();
        eventually("a process of the shell", RUN_TIMEOUT, || {
            let children = std::fs::read_to_string(format!("/proc/{shell}/task/{shell}/children")).ok()?;
            children.split_whitespace().next()?.parse().ok()
        })
    }

    /// Waits until the screen has this text, and returns the screen.
    pub(crate) fn wait_for(&self, text: &str) -> String {
        self.wait_until(text, |screen| screen.contains(text))
    }

    /// Waits until the screen is as wanted; panics with `what` and the last screen.
    pub(crate) fn wait_until(&self, what: &str, wanted: impl Fn(&str) -> bool) -> String {
        let start = std::time::Instant::now();
        loop {
            let screen = self.screen();
            if wanted(&screen) {
                return screen;
            }
            assert!(start.elapsed() < RUN_TIMEOUT, "never came: {what}\n{screen}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // The server may have ended with its shell.
        let _ = Command::new("tmux").arg("-S").arg(&self.socket).arg("kill-server").output();
    }
}
