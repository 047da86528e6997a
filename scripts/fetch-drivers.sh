#!/usr/bin/env bash
# fetch-drivers.sh — fetches SQLite drivers that Debian does not have, each with its own SQLite, into the target
# directory unless they are there. Prints the assignment that tells the VFS's tests where they are:
#   eval "$(scripts/fetch-drivers.sh)"
# apsw is from PyPI, better-sqlite3 and Node from npm, sqlite-jdbc from Maven Central, mattn/go-sqlite3 from the Go
# module proxy.
set -euo pipefail
cd "$(dirname "$0")/.."
target=$(realpath --canonicalize-missing "${CARGO_TARGET_DIR:-target}")
drivers=$target/sqlite-drivers
stories=integrations/sqlite/tests/drivers

needed=()
command -v npm >/dev/null || needed+=(npm)
command -v java >/dev/null || needed+=(default-jdk-headless)
command -v go >/dev/null || needed+=(golang-go)
scripts/packages.sh "fetching, compiling and running SQLite drivers: python3-pip gcc g++ make ${needed[*]}" >&2

jars=$(scripts/fetch-jars.sh sqlite-jdbc-3.54.1.0 org.xerial:sqlite-jdbc:3.54.1.0)
if [ ! -d "$drivers" ]; then
    echo "Fetching apsw, Node, better-sqlite3 and mattn/go-sqlite3" >&2
    work=$(mktemp --directory "$drivers.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    /usr/bin/python3 -m pip install --quiet --no-deps --target "$work/apsw" apsw==3.54.1.0 >&2
    case $(uname -m) in
    x86_64) arch=x64 ;;
    aarch64) arch=arm64 ;;
    *) echo "fetch-drivers.sh: npm has no Node for $(uname -m)" >&2 && exit 1 ;;
    esac
    (
        cd "$work"
        npm pack --silent "node-linux-$arch@22.21.1" >/dev/null
        tar -xzf ./*.tgz
        mv package node
        rm ./*.tgz
        echo '{"private": true}' >package.json
        # Compiled for this Node, with its own headers.
        PATH=$work/node/bin:$PATH npm_config_nodedir=$work/node npm install --silent --build-from-source better-sqlite3@12.6.2
    ) >&2
    ln --symbolic "$jars" "$work/jars"
    mkdir "$work/go"
    printf 'module story\n\ngo 1.21\n\nrequire github.com/mattn/go-sqlite3 v1.14.53\n' >"$work/go/go.mod"
    mv "$work" "$drivers"
    trap - EXIT
fi
cp "$stories/story.go" "$drivers/go"
(cd "$drivers/go" && GOFLAGS=-mod=mod CGO_ENABLED=1 go build -o story .) >&2
printf 'export PAGEKEEPER_SQLITE_DRIVERS=%q\n' "$drivers"
