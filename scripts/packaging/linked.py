"""What is linked into pagekeeper for a target, by cargo's own account."""
import json
import os
import subprocess


# Components beside crates: Rust's standard library, the layer between it and the C library, and the static program's C library. Name, owner
# and licence.
BESIDE = [
    ("rust-std", "The Rust Project Developers", "MIT OR Apache-2.0"),
    ("llvm-libunwind", "The LLVM Project", "Apache-2.0 WITH LLVM-exception"),
    ("zig-compiler-rt", "The Zig contributors", "MIT"),
    ("musl", "2005-2025 Rich Felker, et al.", "MIT"),
]


def linked(target):
    """The program's package; those of others that are linked in, by name and version; and what each of all needs, by their ids."""
    command = [os.environ.get("CARGO", "cargo"), "metadata", "--format-version", "1", "--locked", "--filter-platform", target]
    metadata = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    packages = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}

    def needs(id):
        return [need["pkg"] for need in nodes[id]["deps"] if any(kind["kind"] is None for kind in need["dep_kinds"])]

    (program,) = (package for package in packages.values() if package["name"] == "pagekeeper")
    todo, edges = [program["id"]], {}
    while todo:
        id = todo.pop()
        if id not in edges:
            edges[id] = needs(id)
            todo += edges[id]
    others = [packages[id] for id in edges if packages[id]["source"]]
    return program, sorted(others, key=lambda package: (package["name"], package["version"])), edges
