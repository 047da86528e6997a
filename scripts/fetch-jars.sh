#!/usr/bin/env bash
# fetch-jars.sh NAME GROUP:ARTIFACT:VERSION... — fetches the jars of a Java server from Maven Central into NAME in the
# target directory, unless they are there. Prints the directory.
set -euo pipefail
cd "$(dirname "$0")/.."
name=$1
shift

jars=$(realpath --canonicalize-missing "${CARGO_TARGET_DIR:-target}")/$name
if [ ! -d "$jars" ]; then
    command -v mvn >/dev/null || scripts/packages.sh "what fetches $name: maven" >&2
    echo "Fetching $name from Maven Central" >&2
    mkdir -p "$(dirname "$jars")"
    # On the same file system, so that a rename creates the whole directory atomically.
    work=$(mktemp --directory "$jars.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    {
        echo '<project><modelVersion>4.0.0</modelVersion>'
        echo '<groupId>fetched</groupId><artifactId>fetched</artifactId><version>1</version><dependencies>'
        for artifact in "$@"; do
            IFS=: read -r group artifact version <<<"$artifact"
            echo "<dependency><groupId>$group</groupId><artifactId>$artifact</artifactId><version>$version</version></dependency>"
        done
        echo '</dependencies></project>'
    } >"$work/pom.xml"
    mvn --quiet --batch-mode --file "$work/pom.xml" dependency:copy-dependencies -DincludeScope=runtime \
        "-DoutputDirectory=$work/jars" >&2
    mv "$work/jars" "$jars"
fi
echo "$jars"
