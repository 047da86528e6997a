#!/usr/bin/env bash
# sbom.sh TARGET — prints the components that are linked into the program for TARGET, as CycloneDX 1.5: crates by
# cargo-cyclonedx, which is built in target/tools if missing, and the libraries of compilers by linked.py.
#
# cargo-cyclonedx writes beside every Cargo.toml and names the source's directory, so it gets a copy, whose name is
# replaced. With SOURCE_DATE_EPOCH it prints no random number: the same source gives the same bytes. Fails if the list
# differs from Cargo.lock.
set -euo pipefail
cd "$(dirname "$0")/../.."
cargo=${CARGO:-cargo}
tools=$(realpath --canonicalize-missing "${CARGO_TARGET_DIR:-target}")/tools
cyclonedx=0.5.9

if [ "$("$tools/bin/cargo-cyclonedx" cyclonedx --version 2>/dev/null)" != "cargo-cyclonedx-cyclonedx $cyclonedx" ]; then
    "$cargo" install --quiet --locked --root "$tools" "cargo-cyclonedx@$cyclonedx" >&2
fi
source=$(mktemp --directory)
trap 'rm -rf "$source"' EXIT
cp --recursive Cargo.toml Cargo.lock bench crates docs integrations tests "$source/"
"$tools/bin/cargo-cyclonedx" cyclonedx --quiet --manifest-path "$source/crates/operate/cli/Cargo.toml" --format json --spec-version 1.5 \
    --target "$1" --all --no-build-deps --override-filename sbom >&2
cmp "$source/Cargo.lock" Cargo.lock >&2
sed "s|file://$source/|file:///usr/src/pagekeeper/|g" "$source/crates/operate/cli/sbom.json" |
    PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=scripts/packaging python3 -c '
import json
import sys
from linked import BESIDE

document = json.load(sys.stdin)
for name, owner, licence in BESIDE:
    part = {"type": "library", "bom-ref": f"linked/{name}", "name": name, "copyright": owner, "licenses": [{"expression": licence}]}
    if name == "musl":
        part["description"] = "Of the static program, and so of the image; not of the packages."
    document["components"].append(part)
json.dump(document, sys.stdout, indent=2, ensure_ascii=False)
print()
'
