//! Shell lines that call the tools, with random files, sizes and ways. They leave the same bytes
//! each time they are run.
//!
//! Invariants: `$SRC` has the files of [`make_sources`] and is only read; a line writes below its
//! own directory, and its output does not depend on time, place or process.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use crate::support::MIB;
use crate::support::command::finish;
use pagekeeper_testing::{Rng, Seed};

/// Files of `$SRC`, `f0` and up.
const FILE_COUNT: usize = 8;

/// A tool, and its ways to be called.
pub(super) struct Tool {
    pub(super) name: &'static str,
    pub(super) needs: &'static [&'static str],
    /// Whether none of its pages stay when it runs as a stream.
    pub(super) leaves_nothing: bool,
    /// Whether `a` is the beginning of its file of `$SRC` if it is killed.
    pub(super) copies: bool,
    line: fn(&mut Rng, &str) -> String,
}

impl Tool {
    /// Returns a shell line, and the file of `$SRC` that it uses.
    pub(super) fn line(&self, rng: &mut Rng) -> (String, String) {
        let file = format!("f{}", rng.index(FILE_COUNT));
        ((self.line)(rng, &file), file)
    }
}

const fn stream(
    name: &'static str,
    needs: &'static [&'static str],
    line: fn(&mut Rng, &str) -> String,
) -> Tool {
    Tool { name, needs, leaves_nothing: true, copies: false, line }
}

const fn copy(
    name: &'static str,
    needs: &'static [&'static str],
    line: fn(&mut Rng, &str) -> String,
) -> Tool {
    Tool { name, needs, leaves_nothing: true, copies: true, line }
}

const fn other(
    name: &'static str,
    needs: &'static [&'static str],
    line: fn(&mut Rng, &str) -> String,
) -> Tool {
    Tool { name, needs, leaves_nothing: false, copies: false, line }
}

/// Python's ways to write a file sequentially, and others.
const SEQUENTIAL_WAYS: [&str; 7] = ["whole", "blocks", "into", "shutil", "sendfile", "range", "forked"];
const BY_PARTS: [&str; 2] = ["mapped", "threads"];

/// Returns a random request for a long-lived process.
pub(super) fn any_way(rng: &mut Rng) -> (&'static str, u64, String) {
    let ways = [&SEQUENTIAL_WAYS[..], &BY_PARTS].concat();
    (ways[rng.index(ways.len())], block(rng), format!("f{}", rng.index(FILE_COUNT)))
}

/// All tools.
pub(super) const TOOLS: &[Tool] = &[
    copy("cp", &[], |_, file| format!("cp $SRC/{file} a")),
    copy("cat", &[], |rng, file| match rng.of(0..3) {
        0 => format!("cat $SRC/{file} > a"),
        1 => format!("cat < $SRC/{file} | cat > a"),
        _ => format!("tee b < $SRC/{file} > a"),
    }),
    copy("dd", &[], |rng, file| format!("dd if=$SRC/{file} of=a bs={} status=none", block(rng))),
    copy("busybox cp", &["busybox"], |_, file| format!("busybox cp $SRC/{file} a")),
    copy("env -i cp", &[], |_, file| format!("env -i $(command -v cp) $SRC/{file} a")),
    copy("python", &["python3"], |rng, file| {
        let how = SEQUENTIAL_WAYS[rng.index(SEQUENTIAL_WAYS.len())];
        format!("python3 $SRC/copier.py {how} {} $SRC/{file} a", block(rng))
    }),
    other("python, by parts", &["python3"], |rng, file| {
        let how = BY_PARTS[rng.index(BY_PARTS.len())];
        format!("python3 $SRC/copier.py {how} {} $SRC/{file} a", block(rng))
    }),
    stream("dd over", &[], |rng, file| {
        let (bytes, over, skip, seek) = (block(rng), block(rng), rng.of(0..5), rng.of(0..9));
        let how = ["notrunc", "notrunc,fsync", "notrunc,fdatasync", "notrunc,sparse"][rng.index(4)];
        format!(
            "dd if=$SRC/{file} of=a bs={bytes} status=none
             dd if=$SRC/f1 of=a bs={over} skip={skip} seek={seek} count=40 conv={how} status=none || :"
        )
    }),
    stream("tar", &["tar"], |rng, file| {
        format!("tar -b {} -C $SRC -cf a.tar tree {file}; mkdir x; tar -C x -xf a.tar", rng.of(1..300))
    }),
    stream("tar, piped", &["tar", "zstd"], |_, file| {
        format!("tar -C $SRC -cf - {file} tree | zstd -q -1 > a; mkdir x; zstd -q -d < a | tar -C x -xf -")
    }),
    stream("rsync", &["rsync"], |rng, file| {
        let how = ["--whole-file", "--inplace --no-whole-file", "--no-whole-file", "--sparse"][rng.index(4)];
        let some = rng.of(0..3 * MIB);
        format!(
            "mkdir x; head -c {some} $SRC/f1 > x/{file}; rsync -a --ignore-times {how} $SRC/{file} $SRC/tree x/"
        )
    }),
    stream("zstd", &["zstd"], |rng, file| {
        format!("zstd -q -T2 -{} $SRC/{file} -o a.zst; zstd -q -d a.zst -o a", rng.of(1..4))
    }),
    stream("pigz", &["pigz"], |_, file| format!("pigz -n -1 -p3 -c $SRC/{file} > a.gz; pigz -d -c a.gz > a")),
    stream("gzip", &["gzip"], |_, file| format!("gzip -n -1 -c $SRC/{file} > a.gz; gzip -d -c a.gz > a")),
    stream("split", &[], |rng, file| {
        format!(
            "split -a 3 -b {} $SRC/{file} part.; cat part.* > a; md5sum a; cmp a $SRC/{file}",
            rng.of(50_000..5 * MIB)
        )
    }),
    other("sort", &[], |rng, _| {
        let how = ["", "-r", "-u", "-k2 --parallel=2", "-s -k1,1"][rng.index(5)];
        format!("LC_ALL=C sort {how} -S {}M -T . $SRC/text > a", rng.of(1..9))
    }),
    other("ends of files", &[], |rng, file| {
        let (some, less) = (rng.of(0..9 * MIB), rng.of(0..9 * MIB));
        format!(
            "head -c {some} $SRC/{file} > a; tail -c {less} $SRC/{file} >> a; truncate -s {less} a; cat $SRC/f1 >> a"
        )
    }),
    other("SQLite", &["sqlite3"], |rng, _| {
        let mode = ["wal", "delete", "truncate", "memory"][rng.index(4)];
        let (rows, page) = (rng.of(100..6000), ["512", "4096", "16384"][rng.index(3)]);
        format!(
            "sqlite3 -bail a.db 'PRAGMA page_size={page}; PRAGMA journal_mode={mode}; PRAGMA cache_size=50;
               CREATE TABLE t(id INTEGER PRIMARY KEY, a TEXT, b BLOB);
               WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {rows})
                 INSERT INTO t SELECT i, i || \" row\", zeroblob(i % 900) FROM n;
               CREATE INDEX ta ON t(a); UPDATE t SET a = a || \" again\" WHERE id % 3 = 0; DELETE FROM t WHERE id % 7 = 0;
               VACUUM; PRAGMA integrity_check;'
             sqlite3 a.db .dump > dump; rm -f a.db*"
        )
    }),
    other("git", &["git"], |_, _| {
        "git clone -q --no-local $SRC/git x; git -C x repack -qadf; git -C x fsck --full 2>&1; git -C x rev-parse HEAD
         git -C x status --short; rm -rf x/.git"
            .to_owned()
    }),
    other("restic", &["restic"], |_, file| {
        format!(
            "export RESTIC_PASSWORD=x; here=$PWD; restic -q --no-cache -r repository init
             cd $SRC; restic -q --no-cache -r $here/repository backup {file} tree; cd $here
             restic -q --no-cache -r repository restore latest --target x >&2; rm -rf repository"
        )
    }),
    other("mariadb-dump", &["mariadb-dump"], |rng, _| {
        let how = ["--extended-insert", "--skip-extended-insert", "--hex-blob", "--compact"][rng.index(3)];
        format!(
            "[ -z \"${{SOCKET-}}\" ] || mariadb-dump --skip-dump-date --single-transaction {how} -S $SOCKET load > a"
        )
    }),
];

/// Returns the bytes of a call: an odd or a usual number, and enough that a file does not take
/// minutes.
fn block(rng: &mut Rng) -> u64 {
    match rng.of(0..4) {
        0 => rng.of(3000..70_000),
        1 => 1 << rng.of(12..24),
        2 => rng.of(70_000..12 * MIB),
        _ => 64 * MIB,
    }
}

/// Python's ways to copy a file.
const COPIER: &str = r"
import mmap, os, shutil, sys, threading

def copied(how, block, source, target):
    size = os.path.getsize(source)
    if how == 'whole':
        with open(source, 'rb') as s, open(target, 'wb') as t: t.write(s.read())
    elif how == 'blocks':
        with open(source, 'rb', buffering=0) as s, open(target, 'wb') as t:
            while some := s.read(block): t.write(some)
    elif how == 'into':
        fill = bytearray(block)
        with open(source, 'rb', buffering=0) as s, open(target, 'wb', buffering=0) as t:
            while count := s.readinto(fill): t.write(memoryview(fill)[:count])
    elif how == 'shutil':
        shutil.copyfile(source, target)
    elif how == 'mapped':
        with open(source, 'rb') as s, open(target, 'wb') as t:
            if size:
                with mmap.mmap(s.fileno(), 0, prot=mmap.PROT_READ) as m:
                    for at in range(0, size, block): t.write(m[at:at + block])
    else:
        s, t = os.open(source, os.O_RDONLY), os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        if how == 'sendfile':
            while os.sendfile(t, s, None, block): pass
        elif how == 'range':
            while os.copy_file_range(s, t, block): pass
        elif how == 'forked':
            is_whole = False
            while not is_whole:
                child = os.fork()
                if child == 0:
                    some = os.read(s, max(block, size // 8))
                    while some: some = some[os.write(t, some):]
                    os._exit(os.lseek(s, 0, os.SEEK_CUR) == size)
                is_whole = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        elif how == 'threads':
            part = size // 3 + 1
            def copy(begin):
                at, end = begin, min(begin + part, size)
                while at < end: at += os.pwrite(t, os.pread(s, min(block, end - at), at), at)
            threads = [threading.Thread(target=copy, args=(begin,)) for begin in range(0, size, part)]
            for thread in threads: thread.start()
            for thread in threads: thread.join()
        os.close(s), os.close(t)

if __name__ == '__main__':
    if len(sys.argv) > 1:
        copied(sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4])
    else:
        print('ready', flush=True)
        for line in sys.stdin:
            how, block, source, target = line.split()
            copied(how, int(block), source, target)
            print('done', flush=True)
";

/// Creates the sources: files of odd sizes, a tree of small ones, lines of text, a git
/// repository, and a script.
pub(super) fn make_sources(source: &Path, seed: &Seed) {
    let mut rng = seed.rng(0);
    std::fs::create_dir_all(source.join("tree/below")).expect("make a directory");
    for index in 0..FILE_COUNT {
        let size = match index {
            0 => rng.of(0..5000),
            1 => rng.of(MIB..3 * MIB),
            7 => 24 * MIB + rng.of(0..9 * MIB),
            _ => rng.skewed(16 * MIB),
        };
        std::fs::write(source.join(format!("f{index}")), content(&mut rng, size)).expect("write");
    }
    for index in 0..40 {
        let size = rng.skewed(70_000);
        std::fs::write(source.join(format!("tree/below/{index}")), content(&mut rng, size)).expect("write");
    }
    std::os::unix::fs::symlink("below/7", source.join("tree/link")).expect("link");
    let mut text = String::new();
    for _ in 0..rng.of(60_000..200_000) {
        let (word, number) = (rng.of(0..90_000), rng.number());
        writeln!(text, "{word} {number:x} something of a line").expect("write to a string");
    }
    std::fs::write(source.join("text"), text).expect("write");
    std::fs::write(source.join("copier.py"), COPIER).expect("write");
    let make = "git init -q git; cd git; git config user.name a; git config user.email a@example.org
        for i in 2 3 4; do cp ../f$i binary; cp -r ../tree tree.$i; git add .; git commit -qm $i; done";
    if Command::new("git").arg("--version").output().is_ok() {
        finish(Command::new("sh").args(["-euc", make]).current_dir(source)).expect_success();
    }
}

/// Returns partly compressible bytes.
fn content(rng: &mut Rng, size: u64) -> Vec<u8> {
    let size = usize::try_from(size).expect("small");
    let mut bytes = Vec::with_capacity(size + 8);
    while bytes.len() < size {
        let number = rng.number();
        bytes.extend(number.to_le_bytes().repeat(if number.is_multiple_of(5) { 9 } else { 1 }));
        if number.is_multiple_of(301) {
            bytes.resize(bytes.len() + 5000, 0);
        }
    }
    bytes.truncate(size);
    bytes
}
