//! Completions as a user meets them: keys pressed in bash, zsh and fish on a terminal. The
//! adversary gives a file a name that a shell would execute.

use std::path::Path;
use std::process::{Child, Command};

use crate::support::command::{finish, program, run};
use crate::support::tmux::Terminal;
use crate::support::{can_start, scratch};

#[test]
fn completions_are_for_each_shell() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = run(["completions", shell]).expect_success();
        assert!(script.contains("one-file-system"), "{shell}");
        assert!(!script.contains("PAGEKEEPER_PIDS") || ["elvish", "powershell"].contains(&shell), "{shell}");
    }
}

/// A shell with the completions, in a directory with files.
struct CompletionShell {
    terminal: Terminal,
    name: &'static str,
}

impl CompletionShell {
    /// Returns `None` and prints a line if the shell is not installed.
    fn start(name: &'static str, directory: &Path) -> Option<Self> {
        if !can_start(&format!("completion in {name}"), &[name, "tmux"]) {
            return None;
        }
        let scripts = directory.join("scripts");
        std::fs::create_dir(&scripts).expect("make a directory");
        let script = scripts.join("_pagekeeper");
        std::fs::write(&script, run(["completions", name]).expect_success()).expect("write the script");
        if name != "fish" {
            finish(Command::new(name).arg("-n").arg(&script)).expect_success();
        }
        let files = directory.join("files");
        std::fs::create_dir(&files).expect("make a directory");
        for file in ["table.ibd", "odd;touch owned", "guard.toml", "sub-file"] {
            std::fs::write(files.join(file), "x").expect("write a file");
        }
        for below in ["sub-directory", "dir$(touch owned)"] {
            std::fs::create_dir(files.join(below)).expect("make a directory");
        }
        let terminal = Terminal::new(directory, 160, 50);
        let programs = program().parent().expect("in a directory").to_str().expect("plain").to_owned();
        terminal.enter(&format!("export PATH={programs}:$PATH HOME={}", directory.display()));
        let (scripts, script) = (scripts.display(), script.display());
        let prompt = |prompt| terminal.wait_until(prompt, |screen| screen.lines().any(|line| line == prompt));
        match name {
            "bash" => terminal.enter(&format!(". {script}")),
            "zsh" => {
                terminal.enter("PS1='zsh''> ' exec zsh -f");
                prompt("zsh>");
                terminal.enter(&format!("fpath=({scripts} $fpath); autoload -U compinit; compinit -D -u"));
            }
            _ => {
                terminal.enter("exec fish --no-config -C \"function fish_prompt; echo 'fish''> '; end\"");
                prompt("fish>");
                terminal.enter(&format!("source {script}"));
            }
        }
        terminal.enter(&format!("cd {}", files.display()));
        let shell = Self { terminal, name };
        shell.clear();
        Some(shell)
    }

    /// Clears the typed text and the screen, and waits until the shell has done so.
    fn clear(&self) {
        // Not C-c, which also discards input that the shell has not read yet.
        self.terminal.press(&["C-e", "C-u"]);
        self.terminal.enter("clear; echo 'rea''dy'");
        self.terminal.wait_until("the shell is ready", |screen| screen.lines().any(|line| line == "ready"));
    }

    /// Types words and Tab. Returns the screen once it shows the wanted text.
    fn complete(&self, words: &str, wanted: &str) -> String {
        self.clear();
        self.terminal.write(words);
        self.terminal.press(&["Tab"]);
        // If there are several, bash lists them at the second Tab.
        if self.name == "bash" {
            self.terminal.press(&["Tab"]);
        }
        self.terminal.wait_until(&format!("{wanted} in {}", self.name), |screen| screen.contains(wanted))
    }
}

/// A process that does nothing.
struct IdleProcess(Child);

impl IdleProcess {
    fn start() -> Self {
        Self(Command::new("sleep").arg("600").spawn().expect("start sleep"))
    }
}

impl Drop for IdleProcess {
    fn drop(&mut self) {
        // The process may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn completes(name: &'static str) {
    let directory = scratch();
    let Some(shell) = CompletionShell::start(name, directory.path()) else { return };
    let files = directory.path().join("files");
    let idle = IdleProcess::start();
    let pid = idle.0.id().to_string();

    shell.complete("pagekeeper doc", "pagekeeper doctor");
    shell.complete("pagekeeper run --profile postg", "--profile postgresql");
    shell.complete("pagekeeper guard --print-profile roc", "--print-profile rocksdb");
    shell.complete(&format!("pagekeeper doctor --pid {}", &pid[..pid.len() - 1]), &pid);
    shell.complete("pagekeeper stat tab", "pagekeeper stat table.ibd");
    shell.complete("pagekeeper run --config gua", "--config guard.toml");
    // A file with the same prefix exists, too.
    shell.complete("pagekeeper guard --dir sub-", "--dir sub-directory/");
    // Commands within a file name are not run, for any option.
    for words in ["evict odd", "doctor --snapshot odd", "probe --output odd"] {
        shell.complete(&format!("pagekeeper {words}"), "owned");
        shell.terminal.press(&["Enter"]);
    }
    for words in ["doctor --watch 1ms dir", "guard --once --dry-run --dir dir"] {
        shell.complete(&format!("pagekeeper {words}"), "owned");
        shell.terminal.press(&["Enter"]);
    }
    shell.clear();
    assert!(!files.join("owned").exists(), "{name} ran what a file's name has in it");
}

#[test]
fn bash_completes_paths_profiles_and_processes() {
    completes("bash");
}

#[test]
fn zsh_completes_paths_profiles_and_processes() {
    completes("zsh");
}

#[test]
fn fish_completes_paths_profiles_and_processes() {
    completes("fish");
}
