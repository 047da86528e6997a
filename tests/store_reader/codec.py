"""Numbers, varints and checksums, as the section of conventions has them; and the two ways to fail.

Fails with Damage where bytes are not what they must be, and with Refused where a reader must not go on at all.
"""

import struct


class Damage(Exception):
    """What stands there can't have been written so, or is not all there."""


class Refused(Exception):
    """This is no store that may be opened: the reason."""


def _tables():
    single = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
        single.append(crc)
    # Two bytes in a step: half the time.
    first = [single[both & 255] ^ both >> 8 for both in range(65536)]
    return single, [single[crc & 255] ^ crc >> 8 for crc in first]


_SINGLE, _DOUBLE = _tables()


def crc32c(data, crc=0):
    """CRC-32C of the bytes; `crc` is that of what stands before them."""
    crc ^= 0xFFFFFFFF
    table = _DOUBLE
    for both in struct.unpack_from(f"<{len(data) // 2}H", data):
        crc = table[(crc ^ both) & 0xFFFF] ^ crc >> 16
    if len(data) % 2:
        crc = _SINGLE[(crc ^ data[-1]) & 255] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


assert crc32c(b"123456789") == 0xE3069283


def u16(data, at):
    return int.from_bytes(data[at : at + 2], "little")


def u32(data, at):
    return int.from_bytes(data[at : at + 4], "little")


def u64(data, at):
    return int.from_bytes(data[at : at + 8], "little")


class Cursor:
    """Takes bytes one after the other."""

    def __init__(self, data):
        self.data, self.at = data, 0

    def left(self):
        return len(self.data) - self.at

    def take(self, count):
        if count > self.left():
            raise Damage("it ends too early")
        self.at += count
        return self.data[self.at - count : self.at]

    def rest(self):
        return self.take(self.left())

    def varint(self):
        value = 0
        for index in range(10):
            byte = self.take(1)[0]
            value |= (byte & 127) << 7 * index
            if byte < 128:
                if value >= 1 << 64:
                    break
                return value
        raise Damage("a varint has more than 64 bits")


def round_up(value, to):
    return -(-value // to) * to
