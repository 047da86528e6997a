#!/usr/bin/env bash
# packed.sh DIRECTORY NAME — prints a gzipped tar of NAME in DIRECTORY. The same files give the same bytes: entries are
# sorted, owned by root, and dated by SOURCE_DATE_EPOCH.
set -euo pipefail
tar --create --sort=name --owner=0 --group=0 --numeric-owner --mode=u+rw,go-w,go+rX --mtime="@$SOURCE_DATE_EPOCH" --format=gnu --directory "$1" "$2" |
    gzip --best --no-name
