#!/usr/bin/env bash
# fuzz.sh [TARGET [SECONDS [OPTIONS OF LIBFUZZER…]]] — fuzzes one parser, or each in turn with TARGET "all". Not part of CI.
#
# What is found stays in fuzz/artifacts/TARGET: `cargo +nightly fuzz run TARGET FILE` repeats it. The seed of the run is
# printed at its start, `-seed=N` as an option repeats the run.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}
target=${1:-all}
seconds=${2:-60}

if ! "$cargo" +nightly --version >/dev/null 2>&1; then
    echo "A nightly compiler is missing: rustup toolchain install nightly" >&2
    exit 1
fi
if ! "$cargo" fuzz --version >/dev/null 2>&1; then
    echo "cargo-fuzz is missing: cargo install cargo-fuzz" >&2
    exit 1
fi
targets=$target
if [ "$target" = all ]; then
    targets=$("$cargo" fuzz list)
fi

failed=
# To start from, what the parsers are meant to read.
for one in $targets; do
    corpus=fuzz/corpus/$one
    mkdir -p "$corpus"
    case $one in
    snapshot)
        golden=crates/cli/src/snapshot/testdata/v1.snapshot
        cp "$golden" "$corpus/v1"
        # Without header and checksum, which the target adds itself.
        tail -c +11 "$golden" | head -c -4 >"$corpus/v1-content"
        ;;
    profile)
        cp crates/catalog/profiles/*.toml "$corpus/"
        ;;
    pattern)
        printf '*.{n}\n/d/binlog.000012' >"$corpus/binlog"
        printf 'pg_wal/{x}\n/d/pg_wal/0000000100000000000000FF' >"$corpus/wal"
        printf '#innodb_redo/#ib_redo{n}_tmp\n/d/#innodb_redo/#ib_redo7_tmp' >"$corpus/redo"
        ;;
    superblock)
        half='\7\0\0\100\0\0'$(printf '\\0%.0s' {1..40})'\54\1\0\0\0\0\0\0\0\0\0\0\0\0\0\0\53\1\0\0\0\0\0\0\2\0\0\0\0\0\0\0\0\0'
        printf '%b' "$half$half" >"$corpus/both"
        ;;
    entry)
        # One record: what the store is, then an image, a diff and a page that is free.
        printf '\0\54\11\1\1\254\2\0user\12\21\7\1\2\3\4\310\1ab\17\62\253\2\1\2\3\4\12\1\1x\40\2yz\6\43\0\1\2\3\4' >"$corpus/one"
        # The same in two parts, of the next commit.
        printf '\21\12\11\1\1\254\2\0user\5\42\12\21\7\1\2\3\4\310\1ab\17\62\253\2\1\2\3\4\12\1\1x\40\2yz\6\43\0\1\2\3\4' >"$corpus/parts"
        ;;
    page)
        # Which page of which store it should be, then the page, a trunk of the free list.
        page='\7\0\0\0\0\0\0\0' store='\10\7\6\5\4\3\2\1'
        list='\1\0\0\0\0\0\0\0\2\0\0\0\0\0\0\0\5\0\0\0\0\0\0\0\54\1\0\0\0\0\0\0'
        printf '%b' "$page$store\3\0\0\0\0\3\0\0\0$page\54\1\0\0\0\0\0\0$store$list" >"$corpus/trunk"
        ;;
    settings)
        printf '[mysqld]\nsync-binlog = "1" # each\n!includedir /etc/mysql/conf.d\nskip-x\n' >"$corpus/option-file"
        printf "max_wal_size = '1GB' # more\ninclude_dir 'conf.d'\nwal_recycle off\n" >"$corpus/postgresql"
        printf '[Version]\n  rocksdb_version=7.8.3\n[DBOptions]\n  bytes_per_sync=0\n[CFOptions "default"]\n  a={b=1;}\n' >"$corpus/options"
        printf '[rocksdb]\nbytes-per-sync = "1MB"\n[rocksdb.defaultcf]\nnum-levels = 7\n' >"$corpus/tikv"
        ;;
    warm)
        printf '\0\1\2\200\1' >"$corpus/ranges"
        ;;
    esac
    echo "== $one for $seconds s"
    # The fake machine is written over and over: in memory where it can be.
    scratch=/dev/shm
    [ -w "$scratch" ] || scratch=${TMPDIR:-/tmp}
    TMPDIR=$scratch "$cargo" +nightly fuzz run "$one" -- \
        -max_total_time="$seconds" -timeout=10 -print_final_stats=1 "${@:3}" || failed+=" $one"
done
if [ -n "$failed" ]; then
    echo "failed:$failed" >&2
    exit 1
fi
