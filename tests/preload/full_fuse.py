"""A file system in user space with write-back cache: one empty file may be made, and what is written of it fails for want of room.

Arguments: the mount point, and whether statfs(2) is answered: "says" or "hides". Says "mounted" and serves until it is unmounted.
"""

import errno
import os
import struct
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import fuse_server as fuse

FILE = 2
size, is_made = 0, False


def answer(code, node, body):
    """Answers a request: bytes, the number of an error, or None for no reply."""
    global size, is_made
    if code == fuse.INIT:
        return fuse.start(body)
    if code == fuse.LOOKUP:
        return fuse.entry(FILE, size) if is_made and body[:-1] == b"file" else errno.ENOENT
    if code == fuse.GETATTR:
        return struct.pack("<QII", 0, 0, 0) + fuse.attributes(node, size)
    if code == fuse.SETATTR:
        valid, _, _, length = struct.unpack("<IIQQ", body[:24])
        size = length if valid & 8 else size
        return struct.pack("<QII", 0, 0, 0) + fuse.attributes(node, size)
    if code == fuse.CREATE:
        is_made = True
        return fuse.entry(FILE, size) + struct.pack("<QII", 0, 0, 0)
    if code == fuse.OPEN:
        return struct.pack("<QII", 0, 0, 0)
    if code == fuse.READ:
        return b""
    if code == fuse.STATFS and sys.argv[2] == "says":
        return struct.pack("<QQQQQIIII", 0, 0, 0, 1, 1, 4096, 255, 4096, 0) + bytes(24)
    if code == fuse.WRITE:
        return errno.ENOSPC
    if code in (fuse.RELEASE, fuse.FSYNC, fuse.FLUSH):
        return b""
    if code in (fuse.FORGET, fuse.BATCH_FORGET, fuse.INTERRUPT):
        return None
    return errno.ENOSYS


device = fuse.mount(sys.argv[1], b"full")
print("mounted", flush=True)
fuse.serve(device, answer)
