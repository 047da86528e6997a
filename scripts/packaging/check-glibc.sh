#!/usr/bin/env bash
# check-glibc.sh OLDEST FILE... — prints the glibc that each program or library needs. Fails if that is newer than OLDEST, if another
# library than glibc's is needed, or if no version of glibc is found, so that nothing was compared. Names without a
# version count, too: GLIBC_ABI_DT_RELR came with 2.36, and GLIBC_PRIVATE is for glibc itself.
set -euo pipefail
oldest=$1
shift
failed=0
for file in "$@"; do
    names=$(LC_ALL=C readelf --wide --version-info "$file" | sed -n 's/.*Name: GLIBC_\([A-Za-z0-9_.]*\).*/\1/p')
    unnumbered=$(grep '^[^0-9]' <<<"$names" || true)
    if [ -n "$unnumbered" ]; then
        echo "$file needs GLIBC_"$unnumbered", which glibc $oldest does not have" >&2
        failed=1
    fi
    symbols=$(grep '^[0-9]' <<<"$names" | sort --unique --version-sort || true)
    newest=$(tail -n 1 <<<"$symbols")
    if [ "$(printf '%s\n' "$oldest" "$newest" | sort --version-sort | tail -n 1)" != "$oldest" ]; then
        echo "$file needs glibc $newest, but $oldest should suffice:" >&2
        LC_ALL=C objdump --dynamic-syms "$file" | grep -F "GLIBC_$newest" >&2 || true
        failed=1
    fi
    needed=$(LC_ALL=C readelf --wide --dynamic "$file" | sed -n 's/.*NEEDED.*\[\(.*\)\]/\1/p')
    if [ -z "$names" ] && grep --quiet --line-regexp --fixed-strings libc.so.6 <<<"$needed"; then
        echo "$file needs libc.so.6, but names no version of it" >&2
        failed=1
    fi
    others=$(grep -vE '^(lib(c|m|dl|rt|pthread)\.so\.[0-9]|ld-linux.*)$' <<<"$needed" | grep . || true)
    if [ -n "$others" ]; then
        echo "$file needs libraries outside of glibc:" $others >&2
        failed=1
    fi
    [ "$failed" = 0 ] && echo "${file##*/}: glibc ${newest:-of any version}"
done
exit "$failed"
