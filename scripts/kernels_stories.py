"""Shared by the stories of scripts/kernels-tour.py and scripts/kernels-small.py: running pagekeeper, figures of other programs, and
lines like those of Rust's tests.

Environment: PAGEKEEPER names the program; STORIES is a regular expression that selects stories by name.
"""

import json
import os
import re
import subprocess
import sys
import time

PAGEKEEPER = os.environ["PAGEKEEPER"]
MIB = 1 << 20

passed, failed = 0, 0


def run(*words, status=0, env=None, inside=None):
    """Runs pagekeeper, prints its output, and returns its standard output and standard error."""
    done = subprocess.run([PAGEKEEPER, *words], capture_output=True, text=True, env={**os.environ, **(env or {})}, cwd=inside, timeout=1200)
    print(f"$ pagekeeper {' '.join(words)}")
    for line in (done.stdout + done.stderr).splitlines()[:40]:
        print("  " + (line if len(line) < 400 else line[:400] + "…"))
    if status is not None and done.returncode != status:
        raise AssertionError(f"pagekeeper {words[0]} ended with {done.returncode}: {done.stderr.strip()[-600:]}")
    return done.stdout, done.stderr


def figures(*words):
    return json.loads(run(*words, "--json")[0])


def resident(path):
    """Returns the bytes of a file in the page cache, by fincore."""
    out = subprocess.run(["fincore", "--bytes", "--noheadings", "--output", "RES", path], capture_output=True, text=True, check=True)
    return int(out.stdout.split()[0])


def meminfo():
    with open("/proc/meminfo") as file:
        return {line.split(":")[0]: int(line.split()[1]) * 1024 for line in file if line.endswith("kB\n")}


def same(what, found, expected):
    if found != expected:
        raise AssertionError(f"{what}: {found}, not {expected}")


def write(path, size, synced=True):
    with open(path, "wb") as file:
        for _ in range(size // MIB):
            file.write(os.urandom(MIB))
        file.flush()
        if synced:
            os.fsync(file.fileno())


def content(path):
    with open(path, "rb") as file:
        return file.read()


def story(name, act, *arguments):
    global passed, failed
    if not re.search(os.environ.get("STORIES", ""), name):
        return
    print(f"begins: {name}, at {time.monotonic():.0f} s", flush=True)
    try:
        act(*arguments)
        passed += 1
        print(f"test {name} ... ok", flush=True)
    except Exception as error:  # whatever it is, the other stories go on
        failed += 1
        print(f"{name}: {type(error).__name__}: {error}")
        print(f"test {name} ... FAILED", flush=True)


def results():
    """Prints the summary line, and returns the exit status."""
    verdict = "FAILED" if failed else "ok"
    print(f"test result: {verdict}. {passed} passed; {failed} failed; 0 ignored; 0 measured; 0 filtered out", flush=True)
    sys.exit(1 if failed else 0)
