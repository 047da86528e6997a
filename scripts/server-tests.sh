# Functions that run the tests beside databases and collect their results in one file, `log`. To be sourced, with
# `cargo` set. Each run has a heading, by which scripts/count-tests.sh distinguishes the runs. `status` is that of the
# last failed run.

log=$(mktemp)
trap 'rm -f "$log"' EXIT
status=0

# run_tests HEADING ARGUMENT...: runs the tests that these arguments of the test program select.
run_tests() {
    local heading=$1
    shift
    echo "== $heading" | tee --append "$log"
    "$cargo" test --package pagekeeper --test databases -- --show-output "$@" 2>&1 | tee --append "$log" || status=$?
}

# mysql_server VERSION: prints the name of that version for scripts/fetch-servers.sh.
mysql_server() {
    [ "$1" = 9 ] && echo mysql || echo "mysql-$1"
}

# fetch_mysql VERSION...
fetch_mysql() {
    local version
    for version in "$@"; do
        scripts/fetch-servers.sh "$(mysql_server "$version")" >/dev/null || return 1
    done
}

# run_mysql VERSION...: runs the tests of MySQL on each of these fetched versions.
run_mysql() {
    local version found
    for version in "$@"; do
        found=$(scripts/fetch-servers.sh "$(mysql_server "$version")")
        eval "$found"
        run_tests "MySQL $version" --include-ignored mysql
    done
}
