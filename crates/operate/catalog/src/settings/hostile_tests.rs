//! Malicious settings files: each is read within the limits, and each limit that was hit is
//! reported once.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use pagekeeper_kernel::process::ProcRoot;

use super::limits::{
    KEPT_BYTES_MIN, LimitHit, OPENED_FILES_MAX, READ_BYTES_MAX, TOML_BYTES_MAX, UNREAD_ENTRIES_MAX,
};
use super::testing::server;
use super::{Engine, SETTINGS_FILE_BYTES_MAX, ServerFacts, Settings, SettingsReader};

fn read(server: &ServerFacts) -> Settings {
    SettingsReader::default().read(server, &ProcRoot::default())
}

/// Reads the settings of a server with this option file.
fn mysqld(file: &Path) -> Settings {
    read(&server(
        Engine::MySql,
        Path::new("/nonexistent"),
        &format!("mysqld --defaults-file={}", file.display()),
    ))
}

/// Whether a limit was reported; it may be reported once.
fn said(settings: &Settings, cut: LimitHit) -> bool {
    let sentence = cut.to_string();
    let times = settings.unread.iter().filter(|(_, why)| *why == sentence).count();
    assert!(times <= 1, "{cut:?} {times} times");
    times == 1
}

struct Files(tempfile::TempDir);

impl Files {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
        std::fs::write(self.path(name), text).unwrap();
        self.path(name)
    }
}

#[test]
fn a_file_that_includes_itself_thousands_of_times_is_read_once() {
    let files = Files::new();
    let (path, other) = (files.path("my.cnf"), files.path("other.cnf"));
    std::os::unix::fs::symlink(&path, files.path("link.cnf")).unwrap();
    let lines = |path: &Path| format!("!include {}\n", path.display()).repeat(3000);
    let text = format!(
        "[mysqld]\nsync-binlog=1\n{}{}{}",
        lines(&path),
        lines(&other),
        lines(&files.path("link.cnf"))
    );
    files.write("my.cnf", &text);
    files.write("other.cnf", format!("[mysqld]\nsync-binlog=2\n{}", lines(&path)));
    let settings = mysqld(&path);
    assert!(said(&settings, LimitHit::Cycle) && said(&settings, LimitHit::Files), "{:?}", settings.unread);
    assert!(settings.unread.len() <= UNREAD_ENTRIES_MAX + 8);
    assert!(settings.read_from.len() <= OPENED_FILES_MAX as usize);
    // A value that a later line beyond a limit may change is in doubt.
    let found = settings.get("sync_binlog").unwrap();
    assert_eq!((found.value.as_str(), found.doubt.is_some()), ("1", true));
    // A single self-include is only reported.
    let path = files.write(
        "once.cnf",
        format!("[mysqld]\nsync-binlog=1\n!include {}\n", files.path("once.cnf").display()),
    );
    let settings = mysqld(&path);
    assert_eq!(settings.unread.len(), 1);
    let found = settings.get("sync_binlog").unwrap();
    assert!(
        said(&settings, LimitHit::Cycle) && !found.doubt.as_deref().unwrap_or_default().contains("not all")
    );
}

#[test]
fn files_are_read_up_to_a_number_a_depth_and_a_size() {
    let files = Files::new();
    let deep = |number: u32| files.path(&format!("{number}.deep"));
    for number in 0..20 {
        files.write(
            &format!("{number}.deep"),
            format!("[mysqld]\nx={number}\n!include {}\n", deep(number + 1).display()),
        );
    }
    let settings = mysqld(&deep(0));
    assert!(said(&settings, LimitHit::Depth), "{:?}", settings.unread);
    assert_eq!(settings.read_from.len(), 11);

    std::fs::create_dir(files.path("many.d")).unwrap();
    for number in 0..300 {
        files.write(&format!("many.d/{number}.cnf"), "[mysqld]\nx=1\n");
    }
    let settings =
        mysqld(&files.write("many.cnf", format!("!includedir {}\n", files.path("many.d").display())));
    assert!(said(&settings, LimitHit::Files), "{:?}", settings.unread);
    // Missing files take their time, too.
    let none = (0..5000).fold(String::new(), |mut text, number| {
        writeln!(text, "!include /nonexistent/{number}").unwrap();
        text
    });
    let settings = mysqld(&files.write("none.cnf", none));
    assert!(said(&settings, LimitHit::Files) && settings.unread.len() == 1, "{:?}", settings.unread);

    let big = usize::try_from(SETTINGS_FILE_BYTES_MAX).unwrap();
    let includes = (0..6).fold(String::new(), |mut text, number| {
        let path = files.write(&format!("{number}.big"), "#".repeat(big));
        writeln!(text, "!include {}", path.display()).unwrap();
        text
    });
    let settings = mysqld(&files.write("bytes.cnf", includes));
    assert!(said(&settings, LimitHit::Bytes) && said(&settings, LimitHit::Line), "{:?}", settings.unread);
    assert_eq!(settings.read_from.len() as u64, READ_BYTES_MAX / SETTINGS_FILE_BYTES_MAX);
}

#[test]
fn lines_settings_and_complaints_are_bounded() {
    let files = Files::new();
    let long = "x".repeat(100_000);
    let settings = mysqld(&files.write("long.cnf", format!("[mysqld]\na={long}\n{long}=1\nb=1\n")));
    assert!(said(&settings, LimitHit::Line));
    assert_eq!((settings.get("a"), settings.get("b").unwrap().value.as_str()), (None, "1"));

    let odd = mysqld(&files.write("odd.cnf", "[x\n".repeat(50_000)));
    assert_eq!(odd.unread.len(), UNREAD_ENTRIES_MAX + 1);
    assert!(odd.unread.last().unwrap().1.starts_with("49980 more lines"), "{:?}", odd.unread.last());

    let groups = (0..50_000).fold(String::new(), |mut text, number| {
        writeln!(text, "[mysqld-9.{number}]\nx=1").unwrap();
        text
    });
    assert_eq!(mysqld(&files.write("groups.cnf", groups)).unread.len(), UNREAD_ENTRIES_MAX + 1);

    // A long path and very many options: together they would take far more memory than the file if
    // each kept its path.
    let deep = files.path(&["d".repeat(200), "e".repeat(200), "f".repeat(200)].join("/"));
    std::fs::create_dir_all(&deep).unwrap();
    let path = deep.join("my.cnf");
    std::fs::write(&path, format!("[mysqld]\n{}last=1\n", "a=1\n".repeat(200_000))).unwrap();
    let settings = mysqld(&path);
    assert!(said(&settings, LimitHit::Kept));
    assert!(settings.all().len() < 20_000, "{}", settings.all().len());
    assert!(settings.get("a").unwrap().doubt.is_some());
}

#[test]
fn very_many_databases_have_little_each() {
    let files = Files::new();
    let path = files.write("my.cnf", format!("[mysqld]\n{}", "a=1\n".repeat(45_000)));
    let database = server(
        Engine::MySql,
        Path::new("/nonexistent"),
        &format!("mysqld --defaults-file={}", path.display()),
    );
    let mut reader = SettingsReader::default();
    let counts: Vec<usize> =
        (0..12).map(|_| reader.read(&database, &ProcRoot::default()).all().len()).collect();
    assert!(counts[11] * 10 < counts[0] && counts[11] > 0, "{counts:?}");
    let brief = ServerFacts { is_brief: true, ..database };
    let kept = SettingsReader::default().read(&brief, &ProcRoot::default()).all().len();
    assert!(kept * 10 < counts[0] && kept > 0, "{kept} of {}", counts[0]);
    // An ordinary server's settings are still read.
    let usual = files.write("usual.cnf", "[mysqld]\nsync-binlog=1\n".repeat(200));
    let line = format!("mysqld --defaults-file={}", usual.display());
    let usual = reader.read(&server(Engine::MySql, Path::new("/x"), &line), &ProcRoot::default());
    assert_eq!((usual.all().len(), usual.unread.len()), (200, 0));
    const { assert!(KEPT_BYTES_MIN > 200 * 1024) };
}

#[test]
fn postgresqls_includes_are_bounded() {
    let files = Files::new();
    files.write("PG_VERSION", "15\n");
    files.write("postgresql.conf", "include 'other.conf'\ninclude_dir 'conf.d'\n".repeat(5000));
    files.write("other.conf", "include_if_exists 'postgresql.conf'\nport = 1\n");
    std::fs::create_dir(files.path("conf.d")).unwrap();
    files.write("conf.d/a.conf", "include_dir '.'\nwork_mem = 1\n");
    let settings = read(&server(Engine::PostgreSql, files.0.path(), ""));
    assert!(said(&settings, LimitHit::Cycle) && said(&settings, LimitHit::Files), "{:?}", settings.unread);
    assert!(settings.unread.len() < UNREAD_ENTRIES_MAX + 8);
    // No default is claimed where settings may be missing.
    assert_eq!(settings.get("checkpoint_flush_after"), None);
    assert_eq!(settings.get("port").unwrap().value, "1");
}

#[test]
fn options_of_rocksdb_and_tikv_are_bounded() {
    let files = Files::new();
    let family = |name: &str, options: usize| format!("[CFOptions \"{name}\"]\n{}", "a=1\n".repeat(options));
    let text = format!(
        "[DBOptions]\nbytes_per_sync=1\n{}{}",
        family(&"x".repeat(10_000), 100_000),
        family("y", 1000)
    );
    files.write("OPTIONS-000007", text);
    let settings = read(&server(Engine::RocksDb, files.0.path(), ""));
    assert_eq!(settings.get("bytes_per_sync").unwrap().value, "1");
    assert_eq!((settings.all().len(), settings.get("y.a").unwrap().value.as_str()), (1001, "1"));

    let tikv = |text: &str| {
        let path = files.write("tikv.toml", text);
        let line = format!("tikv-server --config={}", path.display());
        read(&server(Engine::TiKv, files.0.path(), &line))
    };
    let reasons = |settings: &Settings| {
        settings.unread.iter().map(|(_, why)| why.clone()).collect::<Vec<_>>().join("; ")
    };
    let keys = TOML_BYTES_MAX / 10;
    let many = (0..keys).fold(String::new(), |mut text, number| {
        writeln!(text, "a{number} = 1").unwrap();
        text
    });
    assert!(tikv(many[..TOML_BYTES_MAX - 20].rsplit_once('\n').unwrap().0).get("a100").is_some());
    assert!(reasons(&tikv(&many)).contains("files of TOML"));
    // Each key would carry the name of its table.
    let table = format!("[{}]\n{}[rocksdb]\nb = 2\n", "k".repeat(100_000), "a.b = 1\n");
    let settings = tikv(&table);
    assert_eq!(settings.get("rocksdb.b").unwrap().value, "2");
    assert!(settings.all().iter().all(|setting| setting.name.len() <= 256));
    let dots = vec!["a"; 50_000].join(".");
    for deep in [
        format!("{dots} = 1\n"),
        format!("[{dots}]\nx = 1\n"),
        format!("[[{dots}]]\nx = 1\n"),
        format!("a = {}", "[".repeat(100_000)),
        format!("a = {}", "{a=".repeat(80_000)),
    ] {
        let settings = tikv(&deep);
        assert!(
            reasons(&settings).contains("not TOML") || settings.get("a").is_none(),
            "{:?}",
            settings.unread
        );
    }
}

#[test]
fn persisted_settings_are_bounded() {
    let files = Files::new();
    let members = (0..30_000).fold(String::new(), |mut text, number| {
        write!(text, "\n\"v{number}\":{{\"Value\":\"1\"}},").unwrap();
        text
    });
    files.write("mysqld-auto.cnf", format!("{{\"mysql_server\":{{{members}\"last\":{{\"Value\":\"1\"}}}}}}"));
    let settings = read(&server(Engine::MySql, files.0.path(), "mysqld --x"));
    assert_eq!(settings.get("v29999").unwrap().value, "1");
    assert!(matches!(settings.get("v7").unwrap().from, super::SettingOrigin::File { line: 9, .. }));
    files.write("mysqld-auto.cnf", "[".repeat(1 << 19));
    assert_eq!(read(&server(Engine::MySql, files.0.path(), "mysqld --x")).unread.len(), 1);
}
