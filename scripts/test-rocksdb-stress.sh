#!/usr/bin/env bash
# RocksDB's own crash test on pagekeeper's file system: `test-rocksdb-stress.sh SOURCE [SECONDS] [OPTION…]`. SOURCE is RocksDB's source at the version
# that is installed (apt-get source rocksdb); nothing is written to it. Ten minutes if nothing is said; more options go to db_stress.
#
# Only db_stress is built of it, against the installed librocksdb, so with the same options as that: Debian builds with assertions, and without them
# the two would not agree on what their objects look like. Each life is killed, the next one looks whether all that was acknowledged is there.
set -euo pipefail
cd "$(dirname "$0")/.."
target=$(realpath --canonicalize-missing "${CARGO_TARGET_DIR:-target}")
source=$(realpath "${1:?RocksDB\'s source, of the version that is installed: apt-get source rocksdb}")
seconds=${2:-600}
shift $(($# > 1 ? 2 : 1))

version() { # version FILE
    sed -n 's/^#define ROCKSDB_\(MAJOR\|MINOR\|PATCH\) \([0-9]*\).*/\2/p' "$1" | paste -sd.
}
if [ ! -e "$source/db_stress_tool/db_stress.cc" ]; then
    echo "$source is no source of RocksDB: db_stress_tool/db_stress.cc is missing" >&2
    exit 1
fi
for needed in /usr/include/rocksdb/version.h /usr/include/gflags/gflags.h; do
    if [ ! -e "$needed" ]; then
        echo "$needed is missing: apt-get install librocksdb-dev libgflags-dev" >&2
        exit 1
    fi
done
installed=$(version /usr/include/rocksdb/version.h)
if [ "$(version "$source/include/rocksdb/version.h")" != "$installed" ]; then
    echo "$source is RocksDB $(version "$source/include/rocksdb/version.h"), $installed is installed: take the source of that" >&2
    exit 1
fi

scripts/build-rocksdb.sh "$target/rocksdb"
built=$target/rocksdb-stress-$installed
mkdir -p "$built"
compile() { # compile FILE: to an object, unless it is there
    local object
    object=$built/$(basename "$1" .cc).o
    [ -e "$object" ] && return
    echo "building $(basename "$1")"
    "${CXX:-c++}" -std=c++17 -O1 -pthread -DGFLAGS=1 -DOS_LINUX -DROCKSDB_PLATFORM_POSIX -DROCKSDB_LIB_IO_POSIX \
        -DROCKSDB_FALLOCATE_PRESENT -DROCKSDB_RANGESYNC_PRESENT -DROCKSDB_SCHED_GETCPU_PRESENT -DROCKSDB_PTHREAD_ADAPTIVE_MUTEX \
        -DROCKSDB_MALLOC_USABLE_SIZE -DSNAPPY -DLZ4 -DZSTD -DZLIB -DBZIP2 -I"$source" -I"$source/include" -c "$1" -o "$object.part"
    mv "$object.part" "$object"
}
for file in "$source"/db_stress_tool/*.cc; do
    compile "$file"
done
"${CXX:-c++}" -o "$built/db_stress" "$built"/*.o -lrocksdb -lgflags -lsnappy -llz4 -lzstd -lz -lbz2 -pthread

# Only db_stress has the library, not the Python around it.
cat >"$built/on-pagekeeper" <<END
#!/bin/sh
LD_PRELOAD=$target/rocksdb/librocksdb_pagekeeper.so exec $built/db_stress "\$@"
END
chmod +x "$built/on-pagekeeper"
databases=$(mktemp --directory "${TEST_DIR:-/var/tmp}/pagekeeper-stress-XXXXXX")
trap 'rm -rf "$databases"' EXIT
# Mapped reads are RocksDB's own file system's.
if ! TEST_TMPDIR=$databases python3 "$source/tools/db_crashtest.py" --simple blackbox --stress_cmd="$built/on-pagekeeper" \
    --duration="$seconds" --interval=30 --max_key=200000 --mmap_read=0 "--fs_uri=pagekeeper://?cache=16m" "$@" >"$built/log" 2>&1; then
    tail -n 40 "$built/log" >&2
    echo "it failed: all of it is in $built/log, the database is kept in $databases" >&2
    trap - EXIT
    exit 1
fi
echo "$(grep --count '^Running db_stress' "$built/log") lives of db_stress $installed, killed one after the other: nothing was lost or wrong"
