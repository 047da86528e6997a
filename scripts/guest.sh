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

results() {
    local verdict=ok
    [ "$failed" -eq 0 ] || verdict=FAILED
    echo "test result: $verdict. $passed passed; $failed failed; 0 ignored; 0 measured; 0 filtered out"
}
