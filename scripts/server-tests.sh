# To be sourced, with `cargo` set. Runs of the tests beside databases whose results add up in one file, `log`: each under a heading, by which
# scripts/count-tests.sh tells them apart. `status` is that of the last run that failed.

log=$(mktemp)
trap 'rm -f "$log"' EXIT
status=0

# run_tests HEADING ARGUMENT...: the tests that these arguments of the test program choose.
run_tests() {
    local heading=$1
    shift
    echo "== $heading" | tee --append "$log"
    "$cargo" test --package pagekeeper --test databases -- --show-output "$@" 2>&1 | tee --append "$log" || status=$?
}

# mysql_server VERSION: as scripts/fetch-servers.sh calls it.
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

# run_mysql VERSION...: the tests of MySQL beside each of these, which are fetched already.
run_mysql() {
    local version found
    for version in "$@"; do
        found=$(scripts/fetch-servers.sh "$(mysql_server "$version")")
        eval "$found"
        run_tests "MySQL $version" --include-ignored mysql
    done
}
