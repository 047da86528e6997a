#!/usr/bin/env python3
"""The tour of each machine (scripts/kernels-guest.sh): runs every command of pagekeeper and compares its figures with fincore's. Compares
the kernel's features as reported by pagekeeper with the system calls themselves.

    kernels-tour.py DIRECTORY      a story for each command, and a line "capability: NAME: WHAT" for each row of the table

Prints lines like Rust's tests, with the commands' output between them, and fails if a story failed (scripts/kernels_stories.py).
"""

import ctypes
import json
import mmap
import os
import platform
import re
import shutil
import struct
import subprocess
import sys
import time
import urllib.request

from kernels_stories import MIB, PAGEKEEPER, content, figures, meminfo, resident, results, run, same, story, write

PAGE = mmap.PAGESIZE
LIBC = ctypes.CDLL(None, use_errno=True)

capabilities = {}


# Direct system calls, to compare with.


def syscall(number, *arguments):
    """Makes a system call. Returns its result, or minus the error number."""
    found = LIBC.syscall(ctypes.c_long(number), *[ctypes.c_long(a) if isinstance(a, int) else a for a in arguments])
    return found if found >= 0 else -ctypes.get_errno()


def kernel_has_cachestat(path):
    file = os.open(path, os.O_RDONLY)
    counts = (ctypes.c_uint64 * 5)()
    whole = (ctypes.c_uint64 * 2)(0, 0)
    found = syscall(451, file, whole, counts, 0)
    os.close(file)
    return found == 0


def kernel_takes_uncached_writes(directory):
    path = os.path.join(directory, "uncached")
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        return os.pwritev(file, [b"x" * 65536], 0, 0x80) > 0
    except OSError:
        return False
    finally:
        os.close(file)
        os.unlink(path)


def statx(path, wanted):
    """Returns the mask that statx(2) filled in, and the bytes."""
    stat = ctypes.create_string_buffer(256)
    found = syscall(291 if platform.machine() == "aarch64" else 332, -100, os.fsencode(path), 0, wanted, stat)
    return (struct.unpack_from("I", stat.raw, 0)[0], stat.raw) if found == 0 else (0, stat.raw)


def kernel_reports_alignment(path):
    mask, stat = statx(path, 0x2000)
    return struct.unpack_from("II", stat, 152) if mask & 0x2000 else None


def kernel_reports_atomic_writes(path):
    mask, stat = statx(path, 0x10000)
    most = struct.unpack_from("I", stat, 0xAC)[0]
    return most if mask & 0x10000 else 0


def kernel_has_uring():
    ring = ctypes.create_string_buffer(120)
    found = syscall(425, 4, ring)
    if found >= 0:
        os.close(found)
    return found >= 0


# One story per command.


def stat(directory):
    path = os.path.join(directory, "stat")
    write(path, 8 * MIB)
    said = figures("stat", path)["files"][0]
    same("resident", said["resident"], resident(path))
    same("source", said["source"], "cachestat" if kernel_has_cachestat(path) else "mincore")
    capabilities["all counts of pages"] = "full" if said["source"] == "cachestat" else "lesser: what is resident, by mincore(2)"
    dirtied = os.path.join(directory, "dirty")
    write(dirtied, 4 * MIB, synced=False)
    dirty = figures("stat", dirtied)["files"][0]["dirty"]
    if said["source"] == "cachestat":
        same("dirty", dirty, 4 * MIB)
        capabilities["dirty pages of a file"] = "full"
    else:
        same("dirty", dirty, None)
        out, complaint = run("stat", dirtied)
        if "cachestat" not in out + complaint:
            raise AssertionError("it does not say why what is dirty is not known")
        capabilities["dirty pages of a file"] = "none"


def evict_and_warm(directory):
    path = os.path.join(directory, "evicted")
    write(path, 8 * MIB, synced=False)
    run("evict", path)
    same("after evict", resident(path), 0)
    run("warm", path)
    same("after warm", resident(path), 8 * MIB)
    saved = os.path.join(directory, "saved")
    run("snapshot", path, "-o", saved)
    run("evict", "--range", "2M..", path)
    run("warm", "--from", saved)
    same("after warm --from", resident(path), 8 * MIB)


def copy_under_run(directory):
    source, target = os.path.join(directory, "source"), os.path.join(directory, "target")
    write(source, 48 * MIB)
    run("evict", source)
    run("run", "--report", "--", "cp", source, target)
    same("of both", resident(source) + resident(target), 0)
    same("the copy", content(target) == content(source), True)


def static_under_run(directory):
    """Runs a static program, followed by kernel events, or with a line that gives the obstacle."""
    source, target = os.path.join(directory, "static"), os.path.join(directory, "static-copy")
    write(source, 48 * MIB)
    run("evict", source)
    subprocess.run(["rm", "-f", target], check=True)
    said = run("run", "--", os.environ.get("BUSYBOX", "busybox"), "cp", source, target)[1]
    same("the copy", subprocess.run(["cmp", source, target]).returncode, 0)
    version = tuple(int(number) for number in os.uname().release.split(".")[:2])
    if version >= (5, 8) and os.path.exists("/sys/kernel/btf/vmlinux"):
        capabilities["pages of followed processes"] = "full" if version >= (6, 12) else "lesser: not who uses them"
        same("what it said", said, "")
        # cmp(1) has read it.
        run("evict", source, target)
        run("run", "--report", "--", os.environ.get("BUSYBOX", "busybox"), "cp", source, target)
        same("of both", resident(source) + resident(target), 0)
    else:
        capabilities["pages of followed processes"] = "none"
        if "can't be followed by events" not in said:
            raise AssertionError("it does not say that its pages can't be followed by events")
    capabilities["memory.reclaim"] = "full" if os.path.exists("/sys/fs/cgroup/tour/memory.reclaim") else "none"


def guard(directory):
    logs = os.path.join(directory, "logs")
    os.mkdir(logs)
    names = [os.path.join(logs, f"binlog.00000{number}") for number in (1, 2, 3)]
    for name in names:
        write(name, 4 * MIB)
    with open(os.path.join(logs, "binlog.index"), "w") as index:
        index.write("".join(f"./{os.path.basename(name)}\n" for name in names))
    run("guard", "--dry-run", "--once", "--dir", logs, "--profile", "mariadb")
    same("after a dry run", resident(names[0]), 4 * MIB)
    # On an emulated processor, sampling exceeds a tick's budget; the rest is left to the next pass.
    for _ in range(5):
        said = "".join(run("guard", "--once", "--dir", logs, "--profile", "mariadb"))
        if resident(names[0]) + resident(names[1]) == 0:
            break
    # The program is on an overlay, for which cachestat(2) returns nothing.
    same("whether cachestat is missed", "no cachestat" in said, not kernel_has_cachestat(names[0]))
    same("closed logs", resident(names[0]) + resident(names[1]), 0)
    same("closed logs' bytes", os.path.getsize(names[0]), 4 * MIB)


def metrics(directory):
    """Compares the guard's metrics, fetched as Prometheus does, with fincore."""
    logs = os.path.join(directory, "measured")
    os.mkdir(logs)
    path = os.path.join(logs, "binlog.000001")
    write(path, 4 * MIB)
    with open(os.path.join(logs, "binlog.index"), "w") as index:
        index.write("./binlog.000001\n")
    words = [PAGEKEEPER, "guard", "--dry-run", "--dir", logs, "--profile", "mariadb", "--metrics", "127.0.0.1:9417"]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL) as guard:
        try:
            # Waits for the first sample, which follows the first search for databases.
            for _ in range(300):
                text = asked("http://127.0.0.1:9417/metrics")
                found = re.search(r'^pagekeeper_resident_bytes\{[^}]*class="binlog"\} (\d+)$', text, re.MULTILINE)
                if found:
                    break
                time.sleep(0.5)
            same("resident", found and int(found.group(1)), resident(path))
            same("health", asked("http://127.0.0.1:9417/healthz") != "", True)
            print("\n".join(line for line in text.splitlines() if line.startswith("pagekeeper_trace_source")))
        finally:
            guard.terminate()
    same("its end", guard.returncode, 0)


def asked(address):
    """Returns the response, or None if there is none yet."""
    try:
        with urllib.request.urlopen(address, timeout=60) as answer:
            return answer.read().decode()
    except OSError:
        return ""


def store(directory):
    """Shows figures, checks, copies and repairs of a store that a killed process left (crates/engine/store/tests/fixture.rs)."""
    place, backup, restored, repaired = (os.path.join(directory, name) for name in ("store", "backup", "restored", "repaired"))
    shutil.copytree(os.path.join(os.environ.get("SOURCE", "."), "crates/engine/store/tests/fixture/v2"), place)
    same("pages", len(json.loads(run("store", "dump", "--json", place)[0])["pages"]), 12)
    run("store", "stat", place)
    run("store", "backup", place, backup)
    run("store", "restore", backup, restored)
    run("store", "compact", restored)
    run("store", "repair", place, repaired)
    for one in (place, backup, restored, repaired):
        said = json.loads(run("store", "verify", "--json", one)[0])
        same(f"verify {one}", (said["sound"], said["data_pages"]), (True, 10))
    run("store", "stat", directory, status=1)


def doctor(directory):
    path = os.path.join(directory, "stat")
    with open(path, "rb"):
        said = figures("doctor", "--watch", "2s", "--pid", str(os.getpid()))
    same("errors", said["errors"], [])
    traced = said["inspected"]["traced"]
    if "in the kernel" in traced:
        capabilities["events"] = "full"
    elif "tracefs" in traced:
        capabilities["events"] = "lesser: lines of tracefs"
    else:
        capabilities["events"] = f"lesser: {traced}"
    # A locked-down kernel refuses BPF programs; these kernels are not locked down.
    same("events", capabilities["events"], "full")
    run("doctor", "--watch", "2s", "--pid", str(os.getpid()))
    total = said["inspected"]["memory"]["total_bytes"]
    same("all memory", total, meminfo()["MemTotal"])


def top(directory):
    path = os.path.join(directory, "stat")
    content(path)
    said = figures("top", "--once", "-n", "50", directory)
    rows = {row["path"]: row for row in said["rows"]}
    same("resident", rows[path]["resident"], resident(path))
    run("top", "--once", "-n", "5", directory)


def probe(name, directory):
    path = os.path.join(directory, "probed")
    write(path, MIB)
    said = figures("probe", "--quick", "--size", "64M", directory)
    # `found` is flattened.
    reported, worked = said["direct"]["reported"], said["direct"]["worked"]
    raw = kernel_reports_alignment(path)
    same("alignment", reported and (reported["memory_alignment"], reported["offset_alignment"]), raw)
    if reported:
        capabilities[f"alignment of direct I/O, {name}"] = "full"
    else:
        capabilities[f"alignment of direct I/O, {name}"] = f"lesser: found by trying, {worked['offset_alignment']} bytes" if worked else "none"
    uncached = said["uncached"]
    real = [kind for kind in ("append", "unwritten", "overwrite") if uncached[kind]["refused"] is None and not uncached[kind]["resident_bytes"]]
    same("uncached writes", uncached["append"]["refused"] is None, kernel_takes_uncached_writes(directory))
    if len(real) == 3:
        capabilities[f"uncached writes, {name}"] = "full"
    else:
        capabilities[f"uncached writes, {name}"] = "lesser: appends alone" if "append" in real else "none"
    most = max([size["bytes"] for size in said["atomic"]["sizes"] if size["works"]], default=0)
    if most > 0 and kernel_reports_atomic_writes(path) == 0:
        raise AssertionError(f"atomic writes of {most} bytes, but statx(2) reports none")
    capabilities[f"atomic writes, {name}"] = f"full, to {most >> 10} KiB" if most else "none"
    same("io_uring", said["reads"]["by"] == "io_uring", kernel_has_uring())
    return said["reads"]


def probe_without_uring(name, directory):
    knob = "/proc/sys/kernel/io_uring_disabled"
    if not os.path.exists(knob):
        capabilities["io_uring switched off"] = "the kernel has no such setting"
        probe(name, directory)
        return
    with open(knob, "w") as file:
        file.write("2")
    reads = probe(name, directory)
    same("by", reads["by"], "threads")
    if not reads["not_uring"]:
        raise AssertionError("it does not say why not")
    capabilities["io_uring switched off"] = "lesser: threads"
    with open(knob, "w") as file:
        file.write("0")


def probe_with_uring(name, directory):
    reads = probe(name, directory)
    capabilities["io_uring"] = "full" if reads["by"] == "io_uring" else f"lesser: {reads['by']}"


def demo(directory):
    run("demo", "--duration", "6s", "--dir", directory)


def others(_):
    """Runs commands that need no kernel feature."""
    run("--version")
    run("man", "guard")
    run("completions", "bash")


def tour(directory):
    story("kernels::stat", stat, directory)
    story("kernels::evict_warm_snapshot", evict_and_warm, directory)
    story("kernels::run", copy_under_run, directory)
    story("kernels::run_static", static_under_run, directory)
    story("kernels::guard", guard, directory)
    story("kernels::metrics", metrics, directory)
    story("kernels::doctor", doctor, directory)
    story("kernels::top", top, directory)
    story("kernels::probe_ext4", probe_with_uring, "ext4", directory)
    if os.path.ismount("/mnt/xfs"):
        story("kernels::probe_xfs_without_io_uring", probe_without_uring, "XFS", "/mnt/xfs")
    else:
        story("kernels::probe_without_io_uring", probe_without_uring, "ext4", directory)
    story("kernels::demo", demo, directory)
    story("kernels::store", store, directory)
    story("kernels::others", others, directory)
    capabilities["size of a page"] = f"{PAGE >> 10} KiB"
    for name, what in capabilities.items():
        print(f"capability: {name}: {what}")


def main():
    place = sys.argv[1]
    os.makedirs(place)
    tour(place)
    results()


main()
