#!/usr/bin/env bash
# count-tests.sh LOG STATUS — adds up the results in the output of `cargo test`, which exited with STATUS. Before the
# sums it prints the names of failed tests, each with the beginning of its message. A line "== HEADING" begins another
# run, whose skipped tests count again. Fails if a test failed, a test program died without a result, or no test ran.
set -euo pipefail

awk -v status="$2" '
    /^test result: / {
        passed += number("passed"); failed += number("failed"); ignored += number("ignored")
    }
    /^== / { run = substr($0, 4); of = "" }
    / \.\.\. FAILED( <[0-9.]+s>)?$/ { split($0, words, " "); names[++named] = (run == "" ? "" : run ": ") $0; key[named] = run SUBSEP words[2] }
    /^---- .* stdout ----$/ { of = run SUBSEP $2; lines = 0; next }
    /^(----|failures:|successes:|test result:)/ { of = "" }
    of != "" && $0 != "" && lines < 12 { lines++; said[of] = said[of] "    " $0 "\n" }
    # The message of a panic is a failure, already counted.
    / panicked at / { panic = NR }
    # Uncaptured output follows the name of its test.
    /^(test [^ ]+ \.\.\. )?SKIPPED: / && NR != panic + 1 && !seen[run, $0]++ { skipped++ }
    function number(word) {
        return match($0, "[0-9]+ " word) ? substr($0, RSTART, RLENGTH) + 0 : 0
    }
    END {
        if (ignored) print ignored " more are ignored: they run only when asked for (make test-stories, make test-mysql, make test-advice, make test-databases, make test-hostile, make test-preload, make test-cgroup-v2)"
        if (status != 0 && !failed) {
            print "cargo test failed without naming a test: one did not compile, or its binary died"
            failed = 1
        }
        if (!passed && !failed) print "no test ran"
        for (i = 1; i <= named; i++) {
            print names[i]
            printf "%s", said[key[i]]
        }
        printf "%d passed, %d failed, %d skipped\n", passed - skipped, failed, skipped
        exit failed || !passed
    }
' "$1"
