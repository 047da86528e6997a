#!/usr/bin/env bash
# fetch-sqlite.sh — fetches SQLite's source, in Debian's version, into the target directory with apt-get, unless it is
# there. Prints its directory.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(realpath --canonicalize-missing "${CARGO_TARGET_DIR:-target}")/sqlite-tests

if ! compgen -G "$work/source/sqlite3-*/test/select1.test" >/dev/null; then
    mkdir -p "$work"/source "$work"/lists/partial "$work"/cache/archives/partial
    # shellcheck disable=SC1091
    echo "deb-src http://deb.debian.org/debian $(. /etc/os-release && echo "$VERSION_CODENAME") main" >"$work/sources.list"
    apt=(-o "Dir::Etc::sourcelist=$work/sources.list" -o Dir::Etc::sourceparts=/dev/null
        -o "Dir::State::lists=$work/lists" -o "Dir::Cache=$work/cache")
    (cd "$work/source" && apt-get "${apt[@]}" -q update && apt-get "${apt[@]}" -q source --download-only sqlite3 && tar xf sqlite3_*.orig.tar.xz) >&2
fi
dirname "$(dirname "$(compgen -G "$work/source/sqlite3-*/test/select1.test")")"
