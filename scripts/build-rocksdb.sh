#!/usr/bin/env bash
# build-rocksdb.sh DIRECTORY [LIBRARY] — builds librocksdb_pagekeeper.so in a directory, against the installed RocksDB
# headers.
#
# LIBRARY is the C library, as for scripts/build-capi.sh; CXXFLAGS replaces "-O2 -g". Needs Rust, a C++ compiler and
# RocksDB's headers (Debian: g++ librocksdb-dev).
set -euo pipefail
cd "$(dirname "$0")/.."
to=${1:?a directory to build it in}

if [ -z "${ROCKSDB_INCLUDE:-}" ] && [ ! -e /usr/include/rocksdb/file_system.h ]; then
    echo "RocksDB's headers are missing: apt-get install librocksdb-dev, or set ROCKSDB_INCLUDE" >&2
    exit 1
fi
laid_out=$to/capi
scripts/build-capi.sh "$laid_out" "${2:-}"
"${CXX:-c++}" -std=c++17 ${CXXFLAGS:--O2 -g} -fPIC -shared -fvisibility-inlines-hidden -Wall -Wextra ${ROCKSDB_INCLUDE:+-I"$ROCKSDB_INCLUDE"} -I"$laid_out/include" \
    $(ls integrations/rocksdb/*.cc | grep --invert-match builtin) -o "$to/librocksdb_pagekeeper.so" \
    -Wl,-soname,librocksdb_pagekeeper.so -Wl,--exclude-libs,libpagekeeper.a -Wl,-z,defs -Wl,-z,nodelete \
    "$laid_out/lib/libpagekeeper.a" -lrocksdb -lgcc_s -lpthread -lm -ldl
