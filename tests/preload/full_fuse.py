"""A file system in user space with write-back cache: one empty file may be made, and what is written of it fails for want of room.

Arguments: the mount point, and whether statfs(2) is answered: "says" or "hides". Says "mounted" and serves until it is unmounted.
"""

import ctypes
import errno
import os
import struct
import sys

INIT, LOOKUP, FORGET, GETATTR, SETATTR, OPEN, READ, WRITE = 26, 1, 2, 3, 4, 14, 15, 16
STATFS, RELEASE, FSYNC, FLUSH, CREATE, BATCH_FORGET, INTERRUPT = 17, 18, 20, 25, 35, 42, 36
WRITEBACK_CACHE, BIG_WRITES = 1 << 16, 1 << 5
ROOT, FILE = 1, 2
size, is_made = 0, False


def attributes(node):
    mode, length = (0o040755, 0) if node == ROOT else (0o100644, size)
    return struct.pack("<QQQQQQIIIIIIIIII", node, length, (length + 511) // 512, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)


def entry(node):
    return struct.pack("<QQQQII", node, 0, 0, 0, 0, 0) + attributes(node)


def answer(code, node, body):
    """What is sent for a request: bytes, or the number of an error; None where there is no answer."""
    global size, is_made
    if code == INIT:
        major, minor, ahead, flags = struct.unpack("<IIII", body[:16])
        assert flags & WRITEBACK_CACHE
        return struct.pack("<IIIIHHIIHHIIHHIIII", 7, 31, ahead, WRITEBACK_CACHE | BIG_WRITES, 16, 12, 1 << 20, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
    if code == LOOKUP:
        return entry(FILE) if is_made and body[:-1] == b"file" else errno.ENOENT
    if code == GETATTR:
        return struct.pack("<QII", 0, 0, 0) + attributes(node)
    if code == SETATTR:
        valid, _, _, length = struct.unpack("<IIQQ", body[:24])
        size = length if valid & 8 else size
        return struct.pack("<QII", 0, 0, 0) + attributes(node)
    if code == CREATE:
        is_made = True
        return entry(FILE) + struct.pack("<QII", 0, 0, 0)
    if code == OPEN:
        return struct.pack("<QII", 0, 0, 0)
    if code == READ:
        return b""
    if code == STATFS and sys.argv[2] == "says":
        return struct.pack("<QQQQQIIII", 0, 0, 0, 1, 1, 4096, 255, 4096, 0) + bytes(24)
    if code == WRITE:
        return errno.ENOSPC
    if code in (RELEASE, FSYNC, FLUSH):
        return b""
    if code in (FORGET, BATCH_FORGET, INTERRUPT):
        return None
    return errno.ENOSYS


device = os.open("/dev/fuse", os.O_RDWR)
options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other"
mounted = ctypes.CDLL(None, use_errno=True).mount(b"full", os.fsencode(sys.argv[1]), b"fuse", 0, options.encode())
if mounted != 0:
    raise SystemExit(os.strerror(ctypes.get_errno()))
print("mounted", flush=True)
while True:
    try:
        request = os.read(device, (1 << 20) + 65536)
    except OSError as error:
        if error.errno == errno.ENODEV:
            break
        if error.errno in (errno.EINTR, errno.ENOENT):
            continue
        raise
    _, code, unique, node = struct.unpack("<IIQQ", request[:24])
    reply = answer(code, node, request[40:])
    if isinstance(reply, int):
        reply, failed = b"", reply
    else:
        failed = 0
    if reply is not None:
        os.write(device, struct.pack("<IiQ", 16 + len(reply), -failed, unique) + reply)
