"""Mounts a file system in user space and serves it: the protocol of /dev/fuse that the tests' file systems share."""

import ctypes
import errno
import os
import struct

INIT, LOOKUP, FORGET, GETATTR, SETATTR, OPEN, READ, WRITE = 26, 1, 2, 3, 4, 14, 15, 16
STATFS, RELEASE, FSYNC, FLUSH, OPENDIR, READDIR, RELEASEDIR = 17, 18, 20, 25, 27, 28, 29
CREATE, BATCH_FORGET, INTERRUPT = 35, 42, 36
WRITEBACK_CACHE, BIG_WRITES = 1 << 16, 1 << 5
ROOT = 1


def attributes(node, size):
    """Encodes the attributes of a node: the root is a directory, all others are files of `size` bytes."""
    mode, length = (0o040755, 0) if node == ROOT else (0o100644, size)
    return struct.pack("<QQQQQQIIIIIIIIII", node, length, (length + 511) // 512, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)


def entry(node, size):
    """Encodes the answer to LOOKUP and CREATE."""
    return struct.pack("<QQQQII", node, 0, 0, 0, 0, 0) + attributes(node, size)


def start(body):
    """Answers INIT, with write-back cache where the kernel offers it."""
    _, _, ahead, flags = struct.unpack("<IIII", body[:16])
    wanted = flags & (WRITEBACK_CACHE | BIG_WRITES)
    return struct.pack("<IIIIHHIIHHIIHHIIII", 7, 31, ahead, wanted, 16, 12, 1 << 20, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)


def mount(point, name):
    """Mounts a file system at `point`; returns the descriptor of its requests."""
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other"
    if ctypes.CDLL(None, use_errno=True).mount(name, os.fsencode(point), b"fuse", 0, options.encode()) != 0:
        raise SystemExit(os.strerror(ctypes.get_errno()))
    return device


def serve(device, answer):
    """Serves requests until the file system is unmounted.

    `answer(code, node, body)` returns the reply's bytes, the number of an error, or None for no reply.
    """
    while True:
        try:
            request = os.read(device, (1 << 20) + 65536)
        except OSError as error:
            if error.errno == errno.ENODEV:
                return
            if error.errno in (errno.EINTR, errno.ENOENT):
                continue
            raise
        _, code, unique, node = struct.unpack("<IIQQ", request[:24])
        reply = answer(code, node, request[40:])
        if reply is None:
            continue
        reply, failed = (b"", reply) if isinstance(reply, int) else (reply, 0)
        try:
            os.write(device, struct.pack("<IiQ", 16 + len(reply), -failed, unique) + reply)
        except OSError as error:
            # The caller was killed while it waited.
            if error.errno != errno.ENOENT:
                raise
