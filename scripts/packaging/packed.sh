#!/usr/bin/env bash
# packed.sh DIRECTORY NAME — prints a tar, compressed by gzip, of what is called NAME in DIRECTORY: the same bytes from the same files, which are
# sorted, owned by root, and as old as SOURCE_DATE_EPOCH says.
set -euo pipefail
tar --create --sort=name --owner=0 --group=0 --numeric-owner --mode=u+rw,go-w,go+rX --mtime="@$SOURCE_DATE_EPOCH" --format=gnu --directory "$1" "$2" |
    gzip --best --no-name
