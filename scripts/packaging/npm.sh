#!/usr/bin/env bash
# npm.sh VERSION MACHINE ROOT — prints an npm package with the static program and its manuals, for `npm install --global`
# and `npx`. ROOT is what scripts/install.sh laid out. There is no script in it: npm links the program itself, so each
# processor has a package of its own name, which npm refuses to install on others.
set -euo pipefail
cd "$(dirname "$0")/../.."
version=$1 machine=$2 root=$3

case $machine in
    x86_64) cpu=x64 ;;
    *) cpu=arm64 ;;
esac
work=$(mktemp --directory)
trap 'rm -rf "$work"' EXIT
package=$work/package
install -D --mode 755 "$root/bin/pagekeeper" "$package/bin/pagekeeper"
install -D --mode 644 --target-directory "$package/man" "$root"/share/man/man*/*
install --mode 644 "$root"/share/doc/pagekeeper/{copyright,LICENSE-APACHE,LICENSE-MIT} crates/operate/cli/README.md "$package/"
manuals=$(cd "$package" && printf '"./%s",' man/*)
cat >"$package/package.json" <<END
{
  "name": "pagekeeper-linux-$cpu",
  "version": "$version",
  "description": "Keeps a database's log files out of the page cache, and shows, evicts, warms and restores what is in it",
  "license": "MIT OR Apache-2.0",
  "os": ["linux"],
  "cpu": ["$cpu"],
  "bin": { "pagekeeper": "bin/pagekeeper" },
  "man": [${manuals%,}],
  "preferUnplugged": true
}
END
scripts/packaging/packed.sh "$work" package
