#!/usr/bin/env python3
"""sbom.py TARGET — prints what is linked into the program for TARGET, as CycloneDX 1.5: each crate with its licence, the checksum that
Cargo.lock holds it to, and what needs it.

By cargo's own account, and by nothing of the machine or the moment: the same source gives the same bytes. (cargo-cyclonedx gives each
document a random number, and writes beside every Cargo.toml.)
"""
import datetime
import json
import os
import sys
import tomllib

from linked import linked


def purl(package):
    return f"pkg:cargo/{package['name']}@{package['version']}"


def component(package, kind, checksums):
    described = {
        "type": kind,
        "bom-ref": purl(package),
        "name": package["name"],
        "version": package["version"],
        "purl": purl(package),
    }
    if package["license"]:
        described["licenses"] = [{"expression": package["license"].replace("/", " OR ")}]
    if package["description"]:
        described["description"] = " ".join(package["description"].split())
    checksum = checksums.get((package["name"], package["version"]))
    if checksum:
        described["hashes"] = [{"alg": "SHA-256", "content": checksum}]
    if package["repository"]:
        described["externalReferences"] = [{"type": "vcs", "url": package["repository"]}]
    return described


def main():
    target = sys.argv[1]
    program, others, edges = linked(target)
    with open("Cargo.lock", "rb") as file:
        locked = tomllib.load(file)["package"]
    checksums = {(package["name"], package["version"]): package.get("checksum") for package in locked}
    refs = {package["id"]: purl(package) for package in [program, *others]}

    def of_others(id, seen):
        """What a package needs of others, through the project's own crates."""
        for need in edges[id]:
            if need in refs:
                yield refs[need]
            elif need not in seen:
                seen.add(need)
                yield from of_others(need, seen)

    created = datetime.datetime.fromtimestamp(int(os.environ["SOURCE_DATE_EPOCH"]), datetime.timezone.utc)
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "timestamp": created.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "component": component(program, "application", checksums),
            "properties": [{"name": "cdx:rustc:sbom:target:triple", "value": target}],
        },
        "components": [component(package, "library", checksums) for package in others],
        "dependencies": [
            {"ref": ref, "dependsOn": sorted(set(of_others(id, set())))} for id, ref in sorted(refs.items(), key=lambda pair: pair[1])
        ],
    }
    json.dump(document, sys.stdout, indent=1, sort_keys=True)
    print()


main()
