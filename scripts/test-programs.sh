#!/usr/bin/env bash
# Has cargo build tests, and prints the paths of all programs that it built for them, a line each: scripts/test-programs.sh OPTION...
# With --with-packages before them those with tests alone, and before each path, between tabs, the target's kind and its package's directory.
set -euo pipefail
if [ "${1:-}" != --with-packages ]; then
    "${CARGO:-cargo}" test --no-run --message-format=json "$@" | grep -o '"executable":"[^"]*"' | cut -d'"' -f4
    exit
fi
shift
built=$("${CARGO:-cargo}" test --no-run --message-format=json-render-diagnostics "$@")
listed=$(sed --quiet --regexp-extended \
    's/.*"manifest_path":"([^"]*)\/Cargo.toml","target":\{"kind":\["([a-z-]*)".*"overflow_checks":[a-z]*,"test":true\}.*"executable":"([^"]*)".*/\2\t\1\t\3/p' <<<"$built")
# Cargo keeps programs with tests, and them alone, in "deps".
if [ "$(wc --lines <<<"$listed")" != "$(grep --count '"executable":"[^"]*/deps/' <<<"$built")" ]; then
    echo "Cargo built other test programs than scripts/test-programs.sh reads from what it says" >&2
    exit 1
fi
echo "$listed"
