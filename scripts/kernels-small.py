#!/usr/bin/env python3
"""The stories of a small machine, 1 GiB without swap (scripts/kernels-guest.sh): guard, top and doctor while all memory is in use, then while
the kernel kills a program for lack of it. Their figures are compared with /proc/meminfo, fincore and the counts of a memory cgroup.

    kernels-small.py DIRECTORY

Prints lines like Rust's tests, and fails if a story failed (scripts/kernels_stories.py).
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
GUARD_MIB_MAX = 32  # the guard's peak memory at most (VmHWM)

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
    """Returns a count of the memory cgroup, in bytes."""
    with open(f"{GROUP}/memory.{name}") as file:
        text = file.read()
    return int(dict(line.split() for line in text.splitlines())[field] if field else text)


def killed():
    """Returns the programs that the kernel killed for lack of memory, by its log."""
    log = subprocess.run(["dmesg"], capture_output=True, text=True).stdout
    return re.findall(r"Killed process \d+ \(([^)]*)\)", log)


def peak(pid):
    """Returns the peak memory of a process in MiB."""
    with open(f"/proc/{pid}/status") as file:
        return int(re.search(r"VmHWM:\s+(\d+) kB", file.read()).group(1)) >> 10


def hold(size):
    """Starts a program that holds `size` bytes of anonymous memory."""
    text = f"import time; held = bytearray({size}); held[::4096] = b'x' * len(held[::4096]); print('held', flush=True); time.sleep(9999)"
    return start(sys.executable, "-c", text, stdout=subprocess.PIPE)


def guarded(logs):
    words = [PAGEKEEPER, "guard", "--dir", logs, "--profile", "mariadb", "--interval", "500ms"]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def stop(guarding):
    """Ends a running guard, and returns its output."""
    if guarding.poll() is not None:
        raise AssertionError(f"the guard ended by itself: {guarding.returncode}: {guarding.communicate()[0][-600:]}")
    most = peak(guarding.pid)
    guarding.send_signal(signal.SIGTERM)
    out, _ = guarding.communicate(timeout=300)
    print(out)
    same("the guard's end", guarding.returncode, 0)
    print(f"the guard took {most} MiB at most")
    if most > GUARD_MIB_MAX:
        raise AssertionError(f"the guard took {most} MiB of memory")


def write_logs(logs):
    """Writes logs forever and keeps the last eight: about 256 MiB, more than fit beside the holder."""
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
    """One program holds most of the memory; others read and write more than the rest, one of them in a cgroup with a limit."""
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
        # The reader, the writer of logs and the guard still run, so the page cache may have grown or shrunk in between.
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
    same("killed for lack of memory", killed(), [])


def kill(directory):
    """A program allocates memory until the kernel kills it; the kernel never kills the guard."""
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
    same("killed for lack of memory", killed(), [os.path.basename(sys.executable)])


def main():
    directory = sys.argv[1]
    os.makedirs(directory)
    print(f"memory: {meminfo()['MemTotal'] >> 20} MiB")
    story("kernels::small_memory", pressure, directory)
    story("kernels::small_memory_none_left", kill, directory)
    results()


main()
