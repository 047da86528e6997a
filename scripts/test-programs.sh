#!/usr/bin/env bash
# Has cargo build tests, and prints the paths of all programs that it built for them, a line each: scripts/test-programs.sh OPTION...
set -euo pipefail
"${CARGO:-cargo}" test --no-run --message-format=json "$@" | grep -o '"executable":"[^"]*"' | cut -d'"' -f4
