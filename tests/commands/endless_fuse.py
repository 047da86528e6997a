"""A file system in user space with one directory whose listing never ends, and a command that meets it.

Arguments: the mount point and a command. Mounts it in a mount namespace of its own, starts the command there, sends it
SIGTERM once 100,000 names were listed, and ends with its exit code, or 128 + signal.
"""

import ctypes
import errno
import os
import signal
import struct
import sys
import threading

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import fuse_server as fuse

LISTED_BEFORE_SIGNAL = 100_000
CLONE_NEWNS, MS_REC, MS_PRIVATE = 0x00020000, 0x4000, 1 << 18
listed, command = 0, 0


def names_from(offset, size):
    """Encodes directory entries from `offset` on that fit into `size` bytes."""
    global listed
    entries = b""
    while len(entries) + 40 <= size:
        offset += 1
        name = b"n%014d" % offset
        entries += struct.pack("<QQII", offset + 1, offset, len(name), 8) + name + b"\0"
        listed += 1
    return entries


def answer(code, node, body):
    """Answers a request: bytes, the number of an error, or None for no reply."""
    if code == fuse.INIT:
        return fuse.start(body)
    if code == fuse.LOOKUP:
        return fuse.entry(int(body[1:-1]) + 1, 0)
    if code == fuse.GETATTR:
        return struct.pack("<QII", 0, 0, 0) + fuse.attributes(node, 0)
    if code in (fuse.OPEN, fuse.OPENDIR):
        return struct.pack("<QII", 0, 0, 0)
    if code == fuse.READDIR:
        _, offset, size = struct.unpack("<QQI", body[:20])
        before, entries = listed, names_from(offset, size)
        if before < LISTED_BEFORE_SIGNAL <= listed:
            os.kill(command, signal.SIGTERM)
        return entries
    if code == fuse.STATFS:
        return struct.pack("<QQQQQIIII", 0, 0, 0, 1, 1, 4096, 255, 4096, 0) + bytes(24)
    if code in (fuse.RELEASE, fuse.RELEASEDIR, fuse.FLUSH):
        return b""
    if code in (fuse.FORGET, fuse.BATCH_FORGET, fuse.INTERRUPT):
        return None
    return errno.ENOSYS


libc = ctypes.CDLL(None, use_errno=True)
if libc.unshare(CLONE_NEWNS) != 0 or libc.mount(None, b"/", None, MS_REC | MS_PRIVATE, None) != 0:
    raise SystemExit(os.strerror(ctypes.get_errno()))
device = fuse.mount(sys.argv[1], b"endless")
command = os.fork()
if command == 0:
    os.close(device)
    os.execvp(sys.argv[2], sys.argv[2:])
threading.Thread(target=fuse.serve, args=(device, answer), daemon=True).start()
status = os.waitpid(command, 0)[1]
os._exit(os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status))
