//! `pagekeeper top` in a terminal with keys, and as one JSON object for programs.

use crate::support;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;

use crate::support::command::{finish, pagekeeper, program, run};
use crate::support::tmux::Terminal;
use crate::support::{MIB, alone, can_run, can_start, resident_bytes, scratch};
use serde_json::Value;

fn written(path: &Path, mib: usize) {
    let mut file = OpenOptions::new().append(true).create(true).open(path).unwrap();
    file.write_all(&vec![7; mib << 20]).unwrap();
    file.sync_all().unwrap();
}

/// Returns the command line that shows a directory, ten times a second or so.
fn top(dir: &Path) -> String {
    format!("{} top --interval 200ms {}", program().display(), dir.display())
}

/// Returns a file's row of the table.
fn line_of(screen: &str, file: &str) -> Option<String> {
    screen.lines().find(|line| line.contains(file) && !line.contains('?')).map(str::to_owned)
}

/// Returns the terminal's settings by `stty`, before and after.
fn settings(dir: &Path, name: &str) -> String {
    std::fs::read_to_string(dir.join(name)).unwrap_or_default()
}

#[test]
fn a_growing_file_is_seen_filtered_evicted_and_warmed() {
    if !can_run("a_growing_file_is_seen_filtered_evicted_and_warmed", &["tmux", "fincore", "stty"]) {
        return;
    }
    let _alone = alone();
    let (dir, place) = (scratch(), scratch());
    let (growing, partly) = (dir.path().join("growing.dat"), dir.path().join("partly.dat"));
    written(&growing, 4);
    written(&partly, 8);
    let terminal = Terminal::new(place.path(), 80, 24);
    terminal.enter(&format!(
        "stty -g > {}/before; {}; stty -g > {0}/after",
        place.path().display(),
        top(dir.path())
    ));
    terminal.wait_until("both files", |screen| {
        line_of(screen, "growing.dat").is_some_and(|line| line.contains(" 4M "))
            && line_of(screen, "partly.dat").is_some_and(|line| line.contains(" 8M "))
    });
    assert!(terminal.on_other_screen());

    written(&growing, 8);
    let seen = |file: &'static str, size: &'static str| {
        move |screen: &str| line_of(screen, file).is_some_and(|line| line.contains(&format!(" {size} ")))
    };
    terminal.wait_until("the file has grown", seen("growing.dat", "12M"));
    // It has grown past the other file and is now the first row, which is the chosen one.
    terminal.press(&["Home"]);

    terminal.press(&["f"]);
    terminal.press(&["-l", "rowing"]);
    terminal.press(&["Enter"]);
    terminal.wait_until("the other file is filtered away", |screen| {
        line_of(screen, "growing.dat").is_some() && !screen.contains("partly.dat")
    });

    terminal.press(&["e"]);
    terminal.wait_for("y does it");
    terminal.press(&["n"]);
    terminal.wait_for("evict not done");
    // This includes pages that the kernel itself paged out as idle.
    assert_eq!(support::kept_bytes(std::slice::from_ref(&growing)), 12 * MIB);
    terminal.press(&["e"]);
    terminal.wait_for("y does it");
    std::fs::read(&growing).unwrap();
    terminal.press(&["y"]);
    terminal.wait_for("evicted 12M of 12M");
    assert_eq!(resident_bytes(std::slice::from_ref(&growing)), 0);
    terminal.wait_for("no file here has pages in memory");

    // Only a part of the other file is read back, and the screen loads the rest.
    terminal.press(&["Escape"]);
    let file = std::fs::File::open(&partly).unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    let mut page = [0; 4096];
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut page, 0).unwrap();
    drop(file);
    let part = resident_bytes(std::slice::from_ref(&partly));
    assert!(0 < part && part < 8 * MIB, "{part}");
    terminal.wait_until("a part of the file", |screen| {
        line_of(screen, "partly.dat").is_some_and(|line| !line.contains(" 8M "))
    });
    terminal.press(&["Enter"]);
    terminal.wait_for("each sign is");
    terminal.press(&["w"]);
    terminal.wait_for("y does it");
    terminal.press(&["y"]);
    terminal.wait_for("resident now");
    assert!(resident_bytes(std::slice::from_ref(&partly)) > part.max(7 * MIB));

    terminal.press(&["q"]);
    terminal.wait_for("ready>");
    assert!(!terminal.on_other_screen());
    support::eventually("the shell continues", std::time::Duration::from_secs(60), || {
        let after = settings(place.path(), "after");
        (!after.is_empty()).then(|| assert_eq!(after, settings(place.path(), "before")))
    });
}

#[test]
fn signals_and_sizes() {
    if !can_run("signals_and_sizes", &["tmux", "stty", "kill"]) {
        return;
    }
    let _alone = alone();
    let (dir, place) = (scratch(), scratch());
    written(&dir.path().join("file.dat"), 1);
    let terminal = Terminal::new(place.path(), 80, 24);
    let here = place.path().display();
    for signal in ["TERM", "INT"] {
        let command = top(dir.path());
        terminal.enter(&format!(
            "clear; stty -g > {here}/before; {command}; echo code $?; stty -g > {here}/after.{signal}"
        ));
        terminal.wait_for("file.dat");
        // Resizes it while it runs, to a size that is too small and back.
        terminal.resize(50, 10);
        terminal.wait_for("the terminal is too small: it has 50");
        terminal.resize(100, 30);
        terminal.wait_until("the table", |screen| screen.contains("WHO") && screen.contains("file.dat"));
        terminal.resize(80, 24);
        terminal.wait_until("the table", |screen| !screen.contains("WHO") && screen.contains("file.dat"));
        let child = terminal.child().to_string();
        assert!(Command::new("kill").args([&format!("-{signal}"), &child]).status().unwrap().success());
        terminal.wait_for("code 0");
        assert!(!terminal.on_other_screen());
        support::eventually("the shell continues", std::time::Duration::from_secs(60), || {
            let after = settings(place.path(), &format!("after.{signal}"));
            (!after.is_empty()).then(|| assert_eq!(after, settings(place.path(), "before")))
        });
    }
}

#[test]
fn terminals_that_do_not_fit_are_refused_in_a_sentence() {
    if !can_start("terminals_that_do_not_fit_are_refused_in_a_sentence", &["tmux"]) {
        return;
    }
    let _alone = alone();
    let (dir, place) = (scratch(), scratch());
    written(&dir.path().join("file.dat"), 1);
    let small = Terminal::new(place.path(), 50, 10);
    small.enter(&format!("clear; {}; echo code $?", top(dir.path())));
    let screen = small.wait_for("code 64");
    assert!(
        screen.replace('\n', "").contains("it has 50 columns and 10 rows, and 60 and 14 are needed"),
        "{screen}"
    );
    drop(small);

    let terminal = Terminal::new(place.path(), 80, 24);
    terminal.enter(&format!("clear; TERM=dumb {}; echo code $?", top(dir.path())));
    let screen = terminal.wait_for("code 64");
    assert!(screen.contains("can't move its cursor"), "{screen}");

    terminal.enter(&format!("clear; NO_COLOR=1 LC_ALL=C {}", top(dir.path())));
    let screen = terminal.wait_for("file.dat");
    assert!(screen.is_ascii(), "{screen}");
    let coloured = terminal.screen_in_colour();
    let colours = coloured.split("\x1b[").skip(1).filter(|text| {
        // 39 and 49 are the terminal's own colours.
        let codes = text.split('m').next().unwrap_or_default();
        codes
            .split(';')
            .any(|code| code.len() > 1 && code.starts_with(['3', '4', '9']) && !code.ends_with('9'))
    });
    assert_eq!(colours.count(), 0, "{coloured:?}");
    terminal.press(&["C-c"]);
    terminal.wait_until("the shell", |screen| !screen.contains("pagekeeper top  memory"));

    let outcome = finish(pagekeeper().arg("top").arg(dir.path()));
    assert_eq!(outcome.code, 64, "{outcome:?}");
    assert!(outcome.stderr.contains("not both a terminal: use --once"), "{outcome:?}");
}

#[test]
fn one_look_explains_the_cache_and_shows_closed_files() {
    if !can_run("one_look_explains_the_cache_and_shows_closed_files", &[]) {
        return;
    }
    let _alone = alone();
    let dir = scratch();
    let path = dir.path().join("closed-by-all.dat");
    written(&path, 3);
    // Filters by the whole path, since a killed run leaves files with these names.
    let filter = path.to_str().expect("a path of this test's own");
    let once =
        || -> Value { run(["top", "--once", "--json", "--interval", "200ms", "--filter", filter]).json() };
    // Other programs may read and write files while it counts, so the kernel's figure is of
    // another moment; and the kernel may page out idle memory.
    let last = support::eventually("nearly all is explained", std::time::Duration::from_secs(180), || {
        std::fs::read(&path).expect("read it again");
        let last = once();
        let share = last["cached"]["explained_share"].as_f64().expect("a number");
        let whole = last["rows"][0]["resident"] == 3 << 20;
        println!("{share} explained: {}", last["cached"]);
        ((0.98..=1.02).contains(&share) && whole).then_some(last)
    });
    let row = &last["rows"][0];
    assert_eq!(row["path"].as_str().map(Path::new), Some(path.as_path()), "{row:#}");
    assert_eq!((&row["resident"], &row["dirty"]), (&Value::from(3 << 20), &Value::from(0)));
    assert_eq!(last["rows"].as_array().map(Vec::len), Some(1));
    let memory = last["memory"].as_object().unwrap();
    let part = |name: &str| memory[name].as_u64().expect("a number");
    let parts = [
        "processes",
        "files_clean",
        "files_dirty",
        "files_writeback",
        "shmem",
        "buffers",
        "slab",
        "free",
        "other",
    ];
    assert_eq!(parts.iter().map(|name| part(name)).sum::<u64>(), part("total"));
    assert!(last["tasks"]["throttled"].is_array(), "{:#}", last["tasks"]);
}

#[test]
fn a_table_for_people_and_mistakes_in_a_sentence() {
    if !can_run("a_table_for_people_and_mistakes_in_a_sentence", &[]) {
        return;
    }
    let _alone = alone();
    let dir = scratch();
    written(&dir.path().join("one.dat"), 2);
    written(&dir.path().join("two.dat"), 1);
    let place = dir.path().to_str().unwrap();
    let outcome = run(["top", "--once", "--interval", "100ms", "-n", "1", place]);
    assert_eq!(outcome.code, 0, "{outcome:?}");
    assert!(outcome.stdout.contains("2M") && outcome.stdout.contains("one.dat"), "{outcome:?}");
    assert!(outcome.stdout.contains("and 1 more"), "{outcome:?}");
    assert!(
        outcome.stdout.contains(" are of these files") && !outcome.stdout.contains("explained"),
        "{outcome:?}"
    );
    let cached = &run(["top", "--once", "--json", "--interval", "100ms", place]).json()["cached"];
    assert!(cached["explained_share"].is_null() && cached["unexplained"].is_null(), "{cached}");
    assert!(cached["files"].is_u64(), "{cached}");
    let outcome = run(["top", "--once", "/no/such/directory"]);
    assert!(outcome.code == 1 && outcome.stderr.contains("/no/such/directory"), "{outcome:?}");
    for arguments in [&["top", "--once", "--pid", "4194999"][..], &["top", "--pid", "4194999"]] {
        let outcome = run(arguments);
        assert!(outcome.code == 1 && outcome.stdout.is_empty(), "{outcome:?}");
        assert!(outcome.stderr.contains("there is no process 4194999"), "{outcome:?}");
    }
    for wrong in [&["top", "--json"][..], &["top", "--interval", "1ms"], &["top", "--sort", "colour"]] {
        assert_eq!(run(wrong).code, 64, "{wrong:?}");
    }
}

#[test]
fn users_other_than_root_see_the_visibility_gaps() {
    if !can_run("users_other_than_root_see_the_visibility_gaps", &["setpriv"]) {
        return;
    }
    let _alone = alone();
    let dir = scratch();
    written(&dir.path().join("roots.dat"), 1);
    // A copy where other users may start it.
    let copy = dir.path().join("pagekeeper");
    support::copy_program(&program(), &copy);
    let nobody = ["--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all", "--"];
    let arguments = ["top", "--once", "--json", "--interval", "100ms"];
    let outcome = finish(Command::new("setpriv").args(nobody).arg(&copy).args(arguments).arg(dir.path()));
    assert_eq!(outcome.code, 0, "{outcome:?}");
    let gaps = outcome.json()["visibility_gaps"].to_string();
    for gap in ["files or directories of other users", "CAP_FOWNER", "CAP_SYS_PTRACE", "CAP_BPF"] {
        assert!(gaps.contains(gap), "{gap} in {gaps}");
    }
}
