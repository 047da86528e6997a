//! A process with a server's name and with settings files that would take all memory: the doctor
//! ends, reports what it left out, and prints no more than for any other server.

use std::fmt::Write as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::support::command::run;
use crate::support::{can_run, copy_program, eventually, scratch};

/// `sleep` under the name `mysqld`, with a home.
struct Mysqld(Child);

impl Mysqld {
    fn with_home(program: &Path, home: &Path) -> Self {
        let mut command = Command::new(program);
        command.arg("600").env("HOME", home).env_remove("MYSQL_HOME").current_dir(home);
        // A server is recognised by its files.
        let redo = std::fs::File::create(home.join("ib_logfile0")).expect("make a log");
        redo.set_len(1 << 20).expect("make a log");
        let child = Self(command.stdout(redo).stdin(Stdio::null()).spawn().expect("start a copy of sleep"));
        let comm = format!("/proc/{}/comm", child.0.id());
        eventually("it has its name", Duration::from_secs(60), || {
            std::fs::read(&comm).is_ok_and(|comm| comm == b"mysqld\n").then_some(())
        });
        child
    }
}

impl Drop for Mysqld {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn an_option_file_that_includes_itself_is_reported_in_few_words() {
    if !can_run("an_option_file_that_includes_itself_is_reported_in_few_words", &[]) {
        return;
    }
    let dir = scratch();
    let program = dir.path().join("mysqld");
    copy_program(Path::new("/bin/sleep"), &program);
    // The program is searched for the names of its groups once, not for each line.
    std::fs::File::options().write(true).open(&program).unwrap().set_len(100 << 20).unwrap();
    let option_file = dir.path().join(".my.cnf");
    let mut text = "[mysqld]\n".to_owned();
    for number in 0..5000 {
        writeln!(text, "[mysqld-9.{number}]\nx=1\n!include {}", option_file.display()).unwrap();
    }
    std::fs::write(&option_file, text).unwrap();
    let server = Mysqld::with_home(&program, dir.path());
    let outcome = run(["doctor", "--json", "--watch", "100ms", "--pid", &server.0.id().to_string()]);
    assert!(
        outcome.code == 0 && outcome.stdout.len() < 64 << 10,
        "{} bytes: {:.2000}",
        outcome.stdout.len(),
        outcome.stdout
    );
    let report = outcome.json();
    let unread = report["inspected"]["databases"][0]["settings_unread"].to_string();
    for sentence in
        ["it includes itself, and is read once", "settings files and directories are read of one database"]
    {
        assert_eq!(unread.matches(sentence).count(), 1, "{unread}");
    }
    let gaps = report["visibility_gaps"].to_string();
    assert!(gaps.contains("all settings of mysqld (process "), "{gaps}");
}
