#!/usr/bin/env python3
"""copyright.py TARGET — prints the machine-readable copyright file (DEP-5) of what is built for TARGET: the project's own, as
deploy/debian/copyright has it, and one paragraph for each crate that is linked in, with its licence as it names it and the copyright
lines of its licence files; then the licences' texts, each once, as some crate has it.

Fails where a crate has a licence of which no text is known.
"""
import os
import re
import sys

from linked import BESIDE, linked

# A phrase of each licence's text, by its SPDX name.
MARKS = {
    "MIT": "Permission is hereby granted, free of charge",
    "ISC": "Permission to use, copy, modify, and",
    "Unicode-3.0": "UNICODE LICENSE V3",
    "Zlib": "This software is provided 'as-is'",
    "Unlicense": "This is free and unencumbered software",
    "BSL-1.0": "Boost Software License",
    "LLVM-exception": "LLVM Exceptions to the Apache 2.0 License",
}
# Debian's names of licences.
NAMES = {"MIT": "Expat", "OR": "or", "AND": "and", "WITH": "with"}
LLVM = """As an exception, if, as a result of your compiling your source code, portions of this Software are embedded into an Object
form of such source code, you may redistribute such embedded portions in such Object form without complying with the conditions of
Sections 4(a), 4(b) and 4(d) of the License."""


def licence_files(package):
    directory = os.path.dirname(package["manifest_path"])
    for name in sorted(os.listdir(directory)):
        path = os.path.join(directory, name)
        if re.match(r"(?i)(licen[cs]e|copying|copyright|unlicense)", name) and os.path.isfile(path):
            with open(path, encoding="utf-8", errors="replace") as file:
                yield file.read()


def words(expression):
    """The names in a licence expression, and what joins them."""
    return re.findall(r"[A-Za-z0-9.-]+|[()]", expression.replace("/", " OR "))


def shown(expression):
    text = " ".join(NAMES.get(word, word) for word in words(expression))
    return text.replace("( ", "(").replace(" )", ")").replace("LLVM-exception", "LLVM exception")


def copyright_lines(package):
    lines = []
    for text in licence_files(package):
        for line in text.splitlines():
            line = " ".join(line.split()).strip(" .")
            # Skips the example at the end of the Apache License.
            if re.match(r"(?i)(copyright|©|\(c\) \d{4})", line) and re.search(r"\d{4}|©|(?i:\(c\))|Copyright [A-Z]", line):
                line = re.sub(r"(?i)^(copyright|\(c\)|©|[: ])+", "", line)
                if line and "[yyyy]" not in line and "{yyyy}" not in line and "license" not in line.lower() and line not in lines:
                    lines.append(line)
    return lines or package["authors"] or [f"the authors of {package['name']}"]


def texts(packages):
    """A text of each licence, without its copyright lines."""
    found = {"LLVM-exception": LLVM}
    for package in packages:
        for text in licence_files(package):
            for name, mark in MARKS.items():
                flat = " ".join(text.split())
                if name not in found and mark in flat and (name == "LLVM-exception" or "Apache License" not in text):
                    lines = [line.strip() for line in text.splitlines()]
                    lines = [line for line in lines if not re.match(r"(?i)copyright|(the )?(MIT|ISC) license|all rights", line)]
                    found[name] = "\n".join(lines).strip()
    return found


def paragraph(text):
    """Lines of a field that goes on: an empty one is a dot."""
    lines = re.sub(r"\n{3,}", "\n\n", text).splitlines()
    return "\n".join(f" {line}" if line else " ." for line in lines)


def main():
    _, packages, _ = linked(sys.argv[1])
    with open("deploy/debian/copyright", encoding="utf-8") as file:
        print(file.read().rstrip())
    named = set()
    all = [(f"crates/{p['name']}-{p['version']}/*", copyright_lines(p), p["license"] or "") for p in packages]
    all += [(f"linked/{name}/*", [owner], licence) for name, owner, licence in BESIDE]
    for files, owners, licence in all:
        owner = "\n           ".join(owners)
        print(f"\nFiles: {files}\nCopyright: {owner}\nLicense: {shown(licence)}")
        named.update(word for word in words(licence) if word not in ("OR", "AND", "WITH", "(", ")"))
    found = texts(packages)
    # The project itself has these two licences, too.
    for name in sorted(named - {"MIT", "Apache-2.0"}):
        if name not in found:
            sys.exit(f"copyright.py: no crate has a text of the licence {name}")
        shown_name = "Apache-2.0 with LLVM exception" if name == "LLVM-exception" else name
        print(f"\nLicense: {shown_name}\n{paragraph(found[name])}")


main()
