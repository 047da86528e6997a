#!/usr/bin/env python3
"""Writes the features of one machine's kernel (scripts/test-kernels.sh) into the table of a page, between two marks:

    kernels-table.py [--compare] PAGE SUITE FLAVOUR RELEASE LOG

A column for each kernel, in the order of their versions, and a row for each line "capability: NAME: WHAT" of the log. The columns of other
kernels do not change. A log without such lines changes nothing. With --compare the page does not change: differences of that suite's column
are printed, and are a failure.
"""

import re
import sys

BEGIN, END = "<!-- make test-kernels writes from here -->", "<!-- to here -->"


def cells(line):
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def version(column):
    return [int(number) for number in re.findall(r"\d+", column.split("<br>")[-1])]


def compare(found, table, columns, mine):
    """Prints the differences of the page's column for this suite; returns whether there are none."""
    column = next((column for column in columns if column.startswith(mine)), None)
    same = True
    for name, what in found.items():
        said = table.get((column, name), "-")
        if said != what:
            print(f'{name} is "{said}" in the table and "{what}" on the machine: update it by `make test-kernels`')
            same = False
    return same


def main():
    comparing = sys.argv[1] == "--compare"
    page, suite, flavour, release, log = sys.argv[1 + comparing :]
    with open(log) as file:
        found = dict(re.findall(r"^capability: (.+?): (.+)$", file.read(), re.MULTILINE))
    if not found:
        return
    with open(page) as file:
        text = file.read()
    head, rest = text.split(BEGIN)
    old, tail = rest.split(END)
    table = {}
    rows = []
    lines = [line for line in old.splitlines() if line.startswith("|")]
    columns = cells(lines[0])[1:] if lines else []
    for line in lines[2:]:
        name, *values = cells(line)
        rows.append(name)
        for column, value in zip(columns, values):
            table[column, name] = value
    kind = "Ubuntu" if flavour.startswith(("virtual", "generic")) else "Debian"
    machine = f" {flavour}" if "arm64" in flavour else ""
    mine = f"{kind} {suite}{machine}<br>"
    if comparing:
        sys.exit(not compare(found, table, columns, mine))
    columns = [column for column in columns if not column.startswith(mine)]
    column = mine + re.match(r"[0-9.]+", release).group(0)
    columns.append(column)
    # Columns of one version are sorted by name, not by the order in which machines ended.
    columns.sort(key=lambda column: (version(column), column.split("<br>")[0]))
    rows += [name for name in found if name not in rows]
    for name, what in found.items():
        table[column, name] = what
    out = ["| | " + " | ".join(columns) + " |", "|---|" + "---|" * len(columns)]
    out += [f"| {name} | " + " | ".join(table.get((column, name), "-") for column in columns) + " |" for name in rows]
    with open(page, "w") as file:
        file.write(head + BEGIN + "\n\n" + "\n".join(out) + "\n\n" + END + tail)


main()
