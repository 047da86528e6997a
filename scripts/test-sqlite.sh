#!/usr/bin/env bash
# test-sqlite.sh [TEST...] — runs SQLite's own tests with pagekeeper's VFS as the default, and again with SQLite's own
# VFS. Tests that fail only with ours are failures. Without TESTs, also runs SQLite's drivers in other languages. TESTs
# are names without `.test`; by default about 380 run (half an hour). Debian's source of its SQLite is fetched into the
# target directory with apt-get.
#
# Left out: WAL mode, mapped files and memory databases, which do not use this VFS; to save time, by name, tests of SQL,
# virtual tables and single tickets (e_*, fts*, json*, rtree*, sort*, tkt*, vtab*, window*, with*), fuzzing and speed;
# and some files that take longer than two minutes.
set -euo pipefail
cd "$(dirname "$0")/.."
target=$(realpath --canonicalize-missing "${CARGO_TARGET_DIR:-target}")
work=$target/sqlite-tests

scripts/packages.sh "SQLite's own tests: gcc make tcl-dev zlib1g-dev dpkg-dev sqlite3" "the drivers that Debian has: python3 python3-apsw"
scripts/build-sqlite.sh "$work"

source=$(scripts/fetch-sqlite.sh)
if [ ! -x "$source/built/testfixture" ]; then
    mkdir -p "$source/built"
    (cd "$source/built" && ../configure --enable-all --with-tcl=/usr/lib/tcl8.6 CFLAGS=-O1 && make testfixture) >"$work/built.log" 2>&1
fi

# Runs the drivers of other languages, Debian's and fetched ones.
test_drivers() {
    local found
    found=$(scripts/fetch-drivers.sh) && eval "$found" &&
        PAGEKEEPER_REQUIRE_ALL=1 "${CARGO:-cargo}" test --package pagekeeper-sqlite --test drivers -- --include-ignored
}

cat >"$work/run.tcl" <<'TCL'
set test [lindex $argv 0]
if {[info exists env(VFS)]} {
    sqlite3 loader :memory:
    sqlite3_enable_load_extension loader 1
    loader eval {SELECT load_extension($env(VFS), 'sqlite3_pagekeeper_default_init')}
    loader close
}
set argv0 $test
set argv [lrange $argv 1 end]
source $test
TCL

if [ $# -gt 0 ]; then
    tests=("$@")
else
    mapfile -t tests < <(cd "$source/test" && printf '%s\n' *.test | sed 's/\.test$//' |
        grep --invert-match --extended-regexp '^(wal|mmap|mem|fuzz|fts|rtree|json|window|e_|all$|quick|veryquick|full|extraquick|soak|permutations|speed|big|rbu|session|crash7|savepoint6|pagerfault2|backup_ioerr|thread003|tkt|sort|vtab|with)')
fi

# Prints a test's failures: names of its cases, or its exit status.
failed() { # failed WITH TEST
    local place=$work/place
    rm -rf "$place"
    mkdir "$place"
    local vfs=()
    [ "$1" = sqlite ] || vfs=("VFS=$work/pagekeeper_sqlite.so")
    local status=0
    (cd "$place" && env "${vfs[@]}" timeout 120 "$source/built/testfixture" "$work/run.tcl" "$source/test/$2.test") >"$work/said" 2>&1 || status=$?
    awk '/^!Failures on these tests:/ { for (word = 5; word <= NF; word++) print $word }' "$work/said"
    # Retries once, since the machine may be busy.
    if [ "$status" -eq 124 ]; then
        echo "$2: not run to its end in two minutes" >&2
    elif [ "$status" -gt 1 ]; then
        echo "status-$status"
    elif ! grep --quiet ' errors out of ' "$work/said"; then
        # It ended before its last line, which counts its cases; an error in Tcl does that.
        echo no-result
    fi
}

# Otherwise both runs would use SQLite's own VFS.
cat >"$work/asks.test" <<'TCL'
sqlite3 db asks.db
puts [db eval {PRAGMA pagekeeper}]
TCL
mkdir -p "$work/asks"
if ! (cd "$work/asks" && VFS="$work/pagekeeper_sqlite.so" "$source/built/testfixture" "$work/run.tcl" "$work/asks.test") | grep --quiet 'plain: no commits in a log'; then
    echo "pagekeeper's VFS is not the default one in SQLite's testfixture" >&2
    exit 1
fi

bad=0 ran=0 none=0
for test in "${tests[@]}"; do
    ours=$(failed pagekeeper "$test" | sort)
    ran=$((ran + 1))
    if grep --quiet --line-regexp no-result <<<"$ours"; then
        none=$((none + 1))
        echo "$test: ended without a result, for instance by an error in Tcl" >&2
    fi
    [ -n "$ours" ] || continue
    theirs=$(failed sqlite "$test" | sort)
    only=$(comm -23 <(echo "$ours") <(echo "$theirs"))
    if [ -n "$only" ]; then
        echo "$test: fails with pagekeeper's VFS only: $only"
        bad=$((bad + 1))
    fi
done
echo "$ran of SQLite's tests, $bad fail with pagekeeper's VFS only; $none gave no result"
[ $# -gt 0 ] || test_drivers || bad=$((bad + 1))
[ "$bad" -eq 0 ] && [ "$none" -lt "$ran" ]
