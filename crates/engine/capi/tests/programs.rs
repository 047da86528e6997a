//! The library as programs in C, C++ and Python use it: built, installed, found by pkg-config and
//! `CMake`, and run under sanitizers.

use std::fmt::Write as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use pagekeeper_testing::{built_beside, disk_dir, skip};

/// The warnings with which examples and checks are compiled; there must be none.
const CHECKED: [&str; 7] = ["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-O1", "-g", "-D_GNU_SOURCE"];
const SANITIZED: [&str; 2] = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"];
/// Valgrind's tools, with their arguments.
const VALGRIND_TOOLS: [&[&str]; 2] =
    [&["--tool=memcheck", "--leak-check=full", "--errors-for-leak-kinds=definite"], &["--tool=helgrind"]];

fn crate_file(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Whether the programs that a test needs are installed.
fn has(programs: &[&str]) -> bool {
    let missing = programs.iter().find(|program| Command::new(program).arg("--version").output().is_err());
    if let Some(missing) = missing {
        skip(format!("{missing} is not installed"));
    }
    missing.is_none()
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let (said, complained) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{said}\n{complained}", output.status);
    assert!(complained.is_empty(), "{command:?}: {complained}");
    said.into_owned()
}

/// Returns the directory of the library, as installed.
fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let laid_out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("capi");
        let script = crate_file("../../../scripts/build-capi.sh");
        let mut build = Command::new(script);
        run(build.arg(&laid_out).arg(built_beside("libpagekeeper_capi-", ".a")).env("CARGO", env!("CARGO")));
        laid_out
    })
}

/// Compiles a program with sanitizers.
fn compile(compiler: &str, standard: &str, source: &Path, to: &Path) {
    compile_with(compiler, standard, source, to, &SANITIZED);
}

/// Compiles a program against the library that pkg-config finds.
fn compile_with(compiler: &str, standard: &str, source: &Path, to: &Path, more: &[&str]) {
    let paths = library().join("lib/pkgconfig");
    let mut found = Command::new("pkg-config");
    let flags = run(found.args(["--cflags", "--libs", "pagekeeper"]).env("PKG_CONFIG_PATH", paths));
    let mut command = Command::new(compiler);
    command.arg(format!("-std={standard}")).args(CHECKED).args(more).arg(source).arg("-o").arg(to);
    command.args(flags.split_whitespace()).arg(format!("-Wl,-rpath,{}", library().join("lib").display()));
    run(&mut command);
}

#[test]
fn reads_of_every_kind_in_c_give_the_same_bytes() {
    if !has(&["cc", "pkg-config"]) {
        return;
    }
    let dir = disk_dir();
    let (program, file) = (dir.path().join("cache"), dir.path().join("file"));
    compile("cc", "c11", &crate_file("examples/cache.c"), &program);
    let bytes: Vec<u8> =
        (0..3_000_001_u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8 % 200).collect();
    let sum: u64 = bytes.iter().map(|&byte| u64::from(byte)).sum();
    std::fs::write(&file, bytes).unwrap();
    let said = run(Command::new(program).arg(file));
    let ways = ["reads", "batches", "pages", "a queue", "callbacks"];
    let wanted: String = ways.iter().fold(String::new(), |mut wanted, way| {
        let _ = writeln!(wanted, "{sum} by {way}");
        wanted
    });
    assert_eq!(said, format!("{wanted}4096 bytes stay\n"));
}

#[test]
fn the_pages_program_runs() {
    if !has(&["cc", "pkg-config"]) {
        return;
    }
    let page = std::fs::read_to_string(crate_file("../../../docs/src/libraries/c.md")).unwrap();
    let text = page.split("```c\n").find(|block| block.contains("int main")).unwrap();
    let dir = disk_dir();
    let (source, program) = (dir.path().join("accounts.c"), dir.path().join("program"));
    std::fs::write(&source, text.split("```").next().unwrap()).unwrap();
    compile("cc", "c11", &source, &program);
    assert_eq!(run(Command::new(program).current_dir(dir.path())), "last: eve\nada: 100\nbea: 20\nof 3\n");
}

#[test]
fn logs_and_output_in_c() {
    if !has(&["cc", "pkg-config"]) {
        return;
    }
    let dir = disk_dir();
    let program = dir.path().join("logs");
    compile("cc", "c11", &crate_file("examples/logs.c"), &program);
    let said = run(Command::new(program).arg(dir.path()));
    assert_eq!(
        said,
        "100 records of redo\nfound 700\n1000 groups followed\n3000000 bytes of output, warmed, 0 kept\n"
    );
}

#[test]
fn an_engines_own_output_is_paced_in_c() {
    if !has(&["cc", "pkg-config"]) {
        return;
    }
    let dir = disk_dir();
    let (program, file) = (dir.path().join("pacer"), dir.path().join("000043.sst"));
    compile("cc", "c11", &crate_file("examples/pacer.c"), &program);
    let said = run(Command::new(program).arg(&file));
    assert_eq!(said, "3000000 bytes written, pauses of 0 and 40 ms, PK_MISUSE\n");
    assert_eq!(std::fs::metadata(file).unwrap().len(), 3_000_000);
}

#[test]
fn a_forked_child_in_c_is_refused_and_its_parent_loses_nothing() {
    if !has(&["cc", "pkg-config"]) {
        return;
    }
    let dir = disk_dir();
    let program = dir.path().join("forks");
    for way in ["fork", "twice", "threads", "exec"] {
        // A fork can leave a sanitizer's own locks held by threads that the child lacks.
        let checks: &[&str] = if way == "threads" { &[] } else { &SANITIZED };
        compile_with("cc", "c11", &crate_file("tests/forks.c"), &program, checks);
        let directory = dir.path().join(way);
        std::fs::create_dir(&directory).unwrap();
        let output = Command::new(&program).arg(way).arg(&directory).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(output.status.signal(), Some(9), "{way}: {said}\n{output:?}");
        let acknowledged: u64 = said.trim().parse().unwrap_or_else(|_| panic!("{way}: {said}"));
        let found = run(Command::new(&program).arg("found").arg(&directory));
        let found: Vec<u64> = found.split_whitespace().map(|count| count.parse().unwrap()).collect();
        // Another thread appends as well, and not all of its records were printed.
        let is_all =
            |count: &u64| if way == "threads" { *count >= acknowledged } else { *count == acknowledged };
        assert!(found.len() == 3 && found.iter().all(is_all), "{way}: {found:?} of {acknowledged}");
    }
}

#[test]
fn a_store_in_cpp() {
    if !has(&["c++", "pkg-config"]) {
        return;
    }
    let dir = disk_dir();
    let program = dir.path().join("program");
    compile("c++", "c++17", &crate_file("examples/store.cpp"), &program);
    let said = run(Command::new(program).arg(dir.path()));
    assert_eq!(
        said,
        "was balance: 100, is balance: 020\ndurian: 100000 bytes\nbanana is a banana\ncherry is a cherry\ndurian is large\n\
         copied: balance: 020\nhits\npage of b\nPK_NOT_FOUND\n"
    );
}

#[test]
#[ignore = "takes minutes: make test-valgrind"]
fn valgrind_finds_no_fault_in_programs() {
    if !has(&["cc", "c++", "pkg-config", "valgrind"]) {
        return;
    }
    let dir = disk_dir();
    let file = dir.path().join("file");
    std::fs::write(&file, vec![7; 3_000_001]).unwrap();
    for (source, compiler, standard) in [
        ("cache.c", "cc", "c11"),
        ("logs.c", "cc", "c11"),
        ("pacer.c", "cc", "c11"),
        ("store.cpp", "c++", "c++17"),
    ] {
        let program = dir.path().join(source);
        compile_with(compiler, standard, &crate_file("examples").join(source), &program, &[]);
        for tool in VALGRIND_TOOLS {
            let place = disk_dir();
            let argument = match source {
                "cache.c" => file.clone(),
                "pacer.c" => place.path().join("000043.sst"),
                _ => place.path().to_path_buf(),
            };
            // Its warnings of system calls that it does not know are no errors.
            let log = dir.path().join("log");
            let mut valgrind = Command::new("valgrind");
            valgrind.arg("--error-exitcode=9").args(tool).arg(format!("--log-file={}", log.display()));
            for list in ["valgrind.supp", "tests/examples.supp"] {
                valgrind.arg(format!("--suppressions={}", crate_file(list).display()));
            }
            let output = valgrind.arg(&program).arg(argument).output().unwrap();
            let errors = std::fs::read_to_string(log).unwrap();
            assert!(output.status.success(), "{source} {tool:?}: {output:?}\n{errors}");
        }
    }
}

#[test]
fn all_of_it_by_ctypes() {
    if !has(&["cc", "python3"]) {
        return;
    }
    let dir = disk_dir();
    let (library, header) =
        (library().join("lib/libpagekeeper.so.0"), library().join("include/pagekeeper.h"));
    let mut python = Command::new("python3");
    let said = run(python.arg(crate_file("tests/smoke.py")).args([library, header]).arg(dir.path()));
    assert_eq!(said.split_whitespace().count(), 15, "{said}");
}

#[test]
fn the_exports_match_the_header() {
    if !has(&["cc", "nm", "readelf"]) {
        return;
    }
    let shared = library().join("lib/libpagekeeper.so");
    let symbols = run(Command::new("nm").args(["-D", "--defined-only"]).arg(&shared));
    let exported = symbols.lines().filter_map(|line| line.split_whitespace().last());
    let mut exported: Vec<&str> = exported.filter(|name| *name != "PAGEKEEPER_0.1").collect();
    exported.sort_unstable();
    let header = std::fs::read_to_string(crate_file("include/pagekeeper.h")).unwrap();
    let is_of_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    let former = header.lines().filter_map(|line| line.strip_prefix("#define pk_")?.split_once(" pk_"));
    let former: Vec<String> = former.map(|(name, _)| format!("pk_{name}@@PAGEKEEPER_0.1")).collect();
    assert_eq!(former.len(), 21);
    let mut declared: Vec<String> = header
        .lines()
        .filter(|line| {
            ["pk_status ", "void ", "const ", "int ", "uint64_t ", "size_t "]
                .iter()
                .any(|kind| line.starts_with(kind))
        })
        .filter_map(|line| line.split_once('(')?.0.rsplit(|letter| !is_of_name(letter)).next())
        .filter(|name| name.starts_with("pk_"))
        .map(|name| format!("{name}@@PAGEKEEPER_0.1"))
        .chain(former)
        .collect();
    declared.sort_unstable();
    assert_eq!(exported, declared);
    // Each former name means the same function in the header as in the libraries.
    let source = std::fs::read_to_string(crate_file("src/former_names.rs")).unwrap();
    let jumps = source.lines().filter_map(|line| line.trim().strip_suffix(',')?.split_once(" = "));
    let macros = header.lines().filter_map(|line| line.strip_prefix("#define ")?.split_once(' '));
    let macros = macros.filter(|(_, present)| present.starts_with("pk_"));
    assert_eq!(jumps.collect::<Vec<_>>(), macros.collect::<Vec<_>>());
    // It complains of members that have no symbols, or of another compiler's.
    let mut list = Command::new("nm");
    list.args(["--defined-only", "--extern-only"]).arg(library().join("lib/libpagekeeper.a"));
    let symbols = String::from_utf8(list.output().unwrap().stdout).unwrap();
    let names = symbols.lines().filter_map(|line| line.split_once(" T pk_"));
    let mut defined: Vec<String> = names.map(|(_, name)| format!("pk_{name}@@PAGEKEEPER_0.1")).collect();
    defined.sort_unstable();
    assert_eq!(defined, declared);
    let dynamic = run(Command::new("readelf").arg("-d").arg(&shared));
    assert!(dynamic.contains("Library soname: [libpagekeeper.so.0]"), "{dynamic}");
}

#[test]
fn structures_are_as_large_in_c_as_here() {
    if !has(&["cc", "pkg-config"]) {
        return;
    }
    let dir = disk_dir();
    let (source, program) = (dir.path().join("sizes.c"), dir.path().join("sizes"));
    let mut text = "#include <stdio.h>\n#include <pagekeeper.h>\nint main(void) {\n".to_owned();
    for (name, _) in pagekeeper_capi::STRUCT_SIZES {
        let _ = writeln!(text, "  printf(\"{name} %zu\\n\", sizeof({name}));");
    }
    std::fs::write(&source, text + "  return 0;\n}\n").unwrap();
    compile("cc", "c99", &source, &program);
    let here: Vec<String> =
        pagekeeper_capi::STRUCT_SIZES.iter().map(|(name, size)| format!("{name} {size}")).collect();
    assert_eq!(run(&mut Command::new(program)).lines().collect::<Vec<_>>(), here);
}

#[test]
fn cmake_finds_the_shared_and_the_static_one() {
    if !has(&["cmake", "cc", "c++"]) {
        return;
    }
    let dir = disk_dir();
    let project = "cmake_minimum_required(VERSION 3.16)\nproject(user C CXX)\nset(CMAKE_CXX_STANDARD 17)\n\
                   find_package(pagekeeper REQUIRED)\n\
                   add_executable(shared ${EXAMPLES}/logs.c)\ntarget_link_libraries(shared pagekeeper::pagekeeper)\n\
                   add_executable(static ${EXAMPLES}/store.cpp)\ntarget_link_libraries(static pagekeeper::static)\n";
    std::fs::write(dir.path().join("CMakeLists.txt"), project).unwrap();
    let built = dir.path().join("built");
    let mut configure = Command::new("cmake");
    configure.arg("-S").arg(dir.path()).arg("-B").arg(&built);
    configure.arg(format!("-DEXAMPLES={}", crate_file("examples").display()));
    run(configure.arg(format!("-DCMAKE_PREFIX_PATH={}", library().display())));
    run(Command::new("cmake").arg("--build").arg(&built));
    for (program, directory) in [("shared", "one"), ("static", "two")] {
        let directory = dir.path().join(directory);
        std::fs::create_dir(&directory).unwrap();
        assert!(!run(Command::new(built.join(program)).arg(directory)).is_empty());
    }
    let needed = run(Command::new("readelf").arg("-d").arg(built.join("static")));
    assert!(!needed.contains("libpagekeeper"), "{needed}");
}
