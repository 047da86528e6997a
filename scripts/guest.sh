# Functions for scripts that run in a machine of scripts/machine.sh. To be sourced.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root

ends() {
    echo "guest: ends"
    sync
    echo b >/proc/sysrq-trigger
    sleep 60
}

passed=0 failed=0

# result NAME PROBLEM: prints a story's result as a test's line; with a PROBLEM, it failed.
result() {
    if [ -z "$2" ]; then
        passed=$((passed + 1))
        echo "test $1 ... ok"
    else
        failed=$((failed + 1))
        echo "$1: $2"
        echo "test $1 ... FAILED"
    fi
}

# program NAME COMMAND...: runs a test program, which prints its own results. If it dies without results, that is a failure.
program() {
    local name=$1 status=0
    shift
    "$@" 2>&1 || status=$?
    # 101 means that a test failed, which is counted.
    [ "$status" -eq 0 ] || [ "$status" -eq 101 ] || result "$name" "it ended with $status"
}

results() {
    local verdict=ok
    [ "$failed" -eq 0 ] || verdict=FAILED
    echo "test result: $verdict. $passed passed; $failed failed; 0 ignored; 0 measured; 0 filtered out"
}
