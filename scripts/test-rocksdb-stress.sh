#!/usr/bin/env bash
# test-rocksdb-stress.sh SOURCE [SECONDS] [OPTION…] — runs RocksDB's own crash test on pagekeeper's file system, by
# default for ten minutes. SOURCE is RocksDB's source in the installed version (apt-get source rocksdb); nothing is
# written to it. Further options go to db_stress.
#
# Builds only db_stress from it, against the installed librocksdb and with its build options: Debian builds with
# assertions, and without them the layouts of objects would differ. Each life is killed, and the next one checks that
# all acknowledged writes are there.
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
    echo "$source is not RocksDB's source: db_stress_tool/db_stress.cc is missing" >&2
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
    echo "$source is RocksDB $(version "$source/include/rocksdb/version.h"), $installed is installed: use the source of the installed version" >&2
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

# Loads the library into db_stress only, not into the Python around it.
cat >"$built/on-pagekeeper" <<END
#!/bin/sh
LD_PRELOAD=$target/rocksdb/librocksdb_pagekeeper.so exec $built/db_stress "\$@"
END
chmod +x "$built/on-pagekeeper"
databases=$(mktemp --directory "${TEST_DIR:-/var/tmp}/pagekeeper-stress-XXXXXX")
trap 'rm -rf "$databases"' EXIT
# Mapped reads would use RocksDB's own file system.
if ! TEST_TMPDIR=$databases python3 "$source/tools/db_crashtest.py" --simple blackbox --stress_cmd="$built/on-pagekeeper" \
    --duration="$seconds" --interval=30 --max_key=200000 --mmap_read=0 "--fs_uri=pagekeeper://?cache=16m" "$@" >"$built/log" 2>&1; then
    tail -n 40 "$built/log" >&2
    echo "failed: the output is in $built/log, the databases are in $databases" >&2
    trap - EXIT
    exit 1
fi
echo "$(grep --count '^Running db_stress' "$built/log") lives of db_stress $installed, killed one after the other: nothing was lost or wrong"
