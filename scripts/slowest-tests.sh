#!/usr/bin/env bash
# slowest-tests.sh LOG — prints the slowest twenty tests in the output of test programs run with --report-time. The time
# includes the wait for other tests.
set -euo pipefail

echo "The slowest tests, in seconds:"
awk '
    /^ *Running / { program = $NF; sub(".*/", "", program); sub("-[0-9a-f]+$", "", program) }
    /^test .* <[0-9.]+s>$/ { seconds = substr($NF, 2); printf "%9.1f  %s %s\n", seconds, program, $2 }
' "$1" | sort --numeric-sort --reverse | sed --quiet 1,20p
