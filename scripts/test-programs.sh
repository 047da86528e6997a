#!/usr/bin/env bash
# test-programs.sh [--with-packages] OPTION... — has cargo build tests, and prints the paths of the built programs, one
# per line. --with-packages prints only programs with tests, each preceded by the target's kind and its package's
# directory, separated by tabs.
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
    echo "The test programs in cargo's output differ from those that it built" >&2
    exit 1
fi
echo "$listed"
