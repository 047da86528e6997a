# To be sourced by what runs in a machine of scripts/machine.sh.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root

ends() {
    echo "guest: ends"
    sync
    echo b >/proc/sysrq-trigger
    sleep 60
}

passed=0 failed=0

# result NAME PROBLEM: one story, as a test's line; it failed if there is a problem.
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

# program NAME COMMAND...: one program of tests, which prints its own results. Where it ends otherwise than by them, that failed.
program() {
    local name=$1 status=0
    shift
    "$@" 2>&1 || status=$?
    # 101 is that of a test that failed, which is counted.
    [ "$status" -eq 0 ] || [ "$status" -eq 101 ] || result "$name" "it ended with $status"
}

results() {
    local verdict=ok
    [ "$failed" -eq 0 ] || verdict=FAILED
    echo "test result: $verdict. $passed passed; $failed failed; 0 ignored; 0 measured; 0 filtered out"
}
