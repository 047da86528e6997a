#!/usr/bin/env python3
"""What scripts/kernels-guest.sh runs in a small machine, 1 GiB without swap: guard, top and doctor while all memory is in use, then while
the kernel kills a program for it. Their figures are compared with /proc/meminfo, fincore and the counts of a memory cgroup.

    kernels-small.py DIRECTORY

Prints lines as Rust's tests do, and fails if a story did (scripts/kernels_stories.py).
"""

import os
import re
import signal
import subprocess
import sys
import time

from kernels_stories import MIB, PAGEKEEPER, content, figures, meminfo, resident, results, same, story, write

GROUP = "/sys/fs/cgroup/pressed"
LIMIT = 96 * MIB
GUARD_MOST = 32  # MiB that the guard may take, as the kernel counts it (VmHWM)

children = []


def start(*words, **options):
    child = subprocess.Popen(words, **options)
    children.append(child)
    return child


def end_all():
    for child in children:
        child.kill()
        child.wait()
    children.clear()


def between(what, found, one, other, slack):
    low, high = sorted((one, other))
    if not low - slack <= found <= high + slack:
        raise AssertionError(f"{what}: {found >> 20} MiB, but {low >> 20} to {high >> 20} MiB")


def group(name, field=None):
    """A count of the memory cgroup, in bytes."""
    with open(f"{GROUP}/memory.{name}") as file:
        text = file.read()
    return int(dict(line.split() for line in text.splitlines())[field] if field else text)


def killed():
    """Programs that the kernel killed for want of memory, by its log."""
    log = subprocess.run(["dmesg"], capture_output=True, text=True).stdout
    return re.findall(r"Killed process \d+ \(([^)]*)\)", log)


def peak(pid):
    """MiB of memory that a process had at most."""
    with open(f"/proc/{pid}/status") as file:
        return int(re.search(r"VmHWM:\s+(\d+) kB", file.read()).group(1)) >> 10


def hold(size):
    """A program with so much memory of its own, in use."""
    text = f"import time; held = bytearray({size}); held[::4096] = b'x' * len(held[::4096]); print('held', flush=True); time.sleep(9999)"
    return start(sys.executable, "-c", text, stdout=subprocess.PIPE)


def guarded(logs):
    words = [PAGEKEEPER, "guard", "--dir", logs, "--profile", "mariadb", "--interval", "500ms"]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def stop(guarding):
    """Ends a guard that is still there; what it said."""
    if guarding.poll() is not None:
        raise AssertionError(f"the guard ended by itself: {guarding.returncode}: {guarding.communicate()[0][-600:]}")
    most = peak(guarding.pid)
    guarding.send_signal(signal.SIGTERM)
    out, _ = guarding.communicate(timeout=300)
    print(out)
    same("the guard's end", guarding.returncode, 0)
    print(f"the guard took {most} MiB at most")
    if most > GUARD_MOST:
        raise AssertionError(f"the guard took {most} MiB of memory")


def write_logs(logs):
    """Logs without end, of which the last eight stay: about 256 MiB, more than memory has room for beside the holder."""
    open(os.path.join(logs, "binlog.index"), "w").close()
    text = f"""i=0
        while :; do
            i=$((i + 1)); name=$(printf %s/binlog.%06d {logs} $i)
            dd if=/dev/zero of=$name bs=1M count=32 conv=fsync status=none; echo $name >>{logs}/binlog.index
            rm -f $(printf %s/binlog.%06d {logs} $((i - 8)))
            sleep 0.3
        done"""
    start("bash", "-c", text)


def pressure(directory):
    """One program holds most of the memory; others read and write more than the rest of it, one of them in a group with a limit."""
    logs = os.path.join(directory, "pressed")
    os.mkdir(logs)
    big = os.path.join(directory, "big")
    write(big, 384 * MIB)
    os.mkdir(GROUP)
    with open(f"{GROUP}/memory.max", "w") as file:
        file.write(str(LIMIT))
    guarding = guarded(logs)
    try:
        holder = hold(meminfo()["MemAvailable"] * 6 // 10)
        same("the holder said", holder.stdout.readline(), b"held\n")
        text = f"echo $$ >{GROUP}/cgroup.procs; exec 3<{big}; while :; do cat {big} >/dev/null; sleep 0.1; done"
        reader = start("bash", "-c", text)
        write_logs(logs)
        time.sleep(20)
        before = meminfo()
        said = figures("top", "--once", "-n", "50", directory)
        after = meminfo()
        same("top: all memory", said["memory"]["total"], after["MemTotal"])
        # The reader, the writer of logs and the guard go on meanwhile: all page cache may have been more or less in between.
        between("top: page cache", said["cached"]["bytes"], before["Cached"], after["Cached"], 96 * MIB)
        found = figures("doctor", "--watch", "4s", "--pid", str(reader.pid))
        memory = found["inspected"]["memory"]
        same("doctor: all memory", memory["total_bytes"], after["MemTotal"])
        between("doctor: page cache", memory["page_cache_bytes"], after["Cached"], meminfo()["Cached"], 96 * MIB)
        near = [one for one in found["findings"] if one["kind"] == "cgroup-cache"]
        print([one["kind"] for one in found["findings"]])
        same("findings of the group", len(near), 1)
        said = {name: value for one in near[0]["evidence"] for name, value in one["figures"].items()}
        same("doctor: the group's limit", said["limit_bytes"], LIMIT)
        between("doctor: the group's use", said["usage_bytes"], LIMIT, group("current"), 16 * MIB)
        between("doctor: the group's page cache", said["page_cache_bytes"], LIMIT, group("stat", "file"), 16 * MIB)
    except BaseException:
        guarding.kill()
        raise
    finally:
        end_all()
        subprocess.run("pkill -x cat; pkill -x dd", shell=True)
    time.sleep(2)
    same("stat", figures("stat", big)["files"][0]["resident"], resident(big))
    stop(guarding)
    same("killed for want of memory", killed(), [])


def kill(directory):
    """A program takes memory until the kernel kills it: never the guard."""
    logs = os.path.join(directory, "killed")
    os.mkdir(logs)
    guarding = guarded(logs)
    try:
        write_logs(logs)
        hog = start(sys.executable, "-c", "held = []\nwhile True:\n    held.append(b'x' * (4 << 20))")
        same("the program's end", hog.wait(timeout=1200), -signal.SIGKILL)
        content(os.path.join(directory, "big"))
    except BaseException:
        guarding.kill()
        raise
    finally:
        end_all()
        subprocess.run("pkill -x dd", shell=True)
    stop(guarding)
    same("killed for want of memory", killed(), [os.path.basename(sys.executable)])


def main():
    directory = sys.argv[1]
    os.makedirs(directory)
    print(f"memory: {meminfo()['MemTotal'] >> 20} MiB")
    story("kernels::small_memory", pressure, directory)
    story("kernels::small_memory_none_left", kill, directory)
    results()


main()
