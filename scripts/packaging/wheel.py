#!/usr/bin/env python3
"""wheel.py OUT VERSION MACHINE ROOT — a wheel with the static program and its manuals, for `pipx install` and `uvx`.

MACHINE is x86_64 or aarch64; ROOT is what scripts/install.sh laid out. The program needs no C library, so the wheel is for every Linux
that pip knows; Python only installs it. Same bytes from the same files: entries are sorted, and as old as SOURCE_DATE_EPOCH says.
"""
import base64
import hashlib
import os
import sys
import time
import zipfile

SUMMARY = "Keeps a database's log files out of the page cache, and shows, evicts, warms and restores what is in it"


def main():
    out, version, machine, root = sys.argv[1:]
    tag = f"manylinux_2_17_{machine}.musllinux_1_1_{machine}"
    name = f"pagekeeper-{version}"
    info, data = f"{name}.dist-info", f"{name}.data"
    manuals = os.path.join(root, "share/man")
    sources = {f"{data}/scripts/pagekeeper": os.path.join(root, "bin/pagekeeper")}
    for section in os.listdir(manuals):
        for page in os.listdir(os.path.join(manuals, section)):
            sources[f"{data}/data/share/man/{section}/{page}"] = os.path.join(manuals, section, page)
    licences = ["copyright", "LICENSE-APACHE", "LICENSE-MIT"]
    for licence in licences:
        sources[f"{info}/licenses/{licence}"] = os.path.join(root, "share/doc/pagekeeper", licence)
    contents = {}
    for entry, path in sources.items():
        with open(path, "rb") as file:
            contents[entry] = file.read()
    metadata = ["Metadata-Version: 2.4", "Name: pagekeeper", f"Version: {version}", f"Summary: {SUMMARY}"]
    metadata += ["License-Expression: MIT OR Apache-2.0", *(f"License-File: {licence}" for licence in licences)]
    contents[f"{info}/METADATA"] = ("\n".join(metadata) + "\n").encode()
    tags = [f"Tag: py3-none-{each}" for each in tag.split(".")]
    wheel = ["Wheel-Version: 1.0", "Generator: pagekeeper", "Root-Is-Purelib: false", *tags]
    contents[f"{info}/WHEEL"] = ("\n".join(wheel) + "\n").encode()
    record = f"{info}/RECORD"
    lines = []
    for entry, content in sorted(contents.items()):
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        lines.append(f"{entry},sha256={digest},{len(content)}\n")
    contents[record] = "".join([*lines, f"{record},,\n"]).encode()
    date = time.gmtime(max(int(os.environ["SOURCE_DATE_EPOCH"]), 315532800))[:6]
    with zipfile.ZipFile(os.path.join(out, f"{name}-py3-none-{tag}.whl"), "w", zipfile.ZIP_DEFLATED) as archive:
        # The list of files is the last one, as pip recommends.
        for entry in sorted(contents, key=lambda entry: (entry == record, entry)):
            described = zipfile.ZipInfo(entry, date)
            described.compress_type = zipfile.ZIP_DEFLATED
            described.external_attr = (0o100755 if "/scripts/" in entry else 0o100644) << 16
            archive.writestr(described, contents[entry])


if __name__ == "__main__":
    main()
