#!/usr/bin/env bash
# The guard beside servers that Debian does not have: Kafka's jars come from Maven Central into the target directory, a runtime
# for them and a client from Debian.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}

scripts/require-rust.sh
scripts/packages.sh "the brokers and their client: default-jre-headless kcat util-linux-extra"

version=4.1.1
jars=$(realpath --canonicalize-missing "${CARGO_TARGET_DIR:-target}")/kafka-$version
if [ ! -d "$jars" ]; then
    command -v mvn >/dev/null || scripts/packages.sh "what fetches Kafka: maven"
    echo "Fetching Kafka $version from Maven Central"
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    cat >"$work/pom.xml" <<POM
<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>fetched</groupId><artifactId>fetched</artifactId><version>1</version>
  <dependencies>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>$version</version></dependency>
  </dependencies>
</project>
POM
    mvn --quiet --batch-mode --file "$work/pom.xml" dependency:copy-dependencies -DincludeScope=runtime \
        "-DoutputDirectory=$work/jars"
    mkdir -p "$(dirname "$jars")"
    mv "$work/jars" "$jars"
    rm -rf "$work"
fi

export PAGEKEEPER_KAFKA=$jars
if [ "$(id -u)" -eq 0 ]; then
    export PAGEKEEPER_REQUIRE_ALL=${PAGEKEEPER_REQUIRE_ALL:-1}
fi
log=$(mktemp)
trap 'rm -f "$log"' EXIT
status=0
"$cargo" test --package pagekeeper --test databases -- logged::old_segments_of_kafka --ignored --show-output 2>&1 |
    tee "$log" || status=$?
scripts/count-tests.sh "$log" "$status"
