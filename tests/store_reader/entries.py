"""Commits: entries put together of the journal's records, and what they change. Fails with Damage or Refused."""

from codec import Cursor, Damage, Refused, u16, u32, u64
from superblock import State

VERSION = 1
IMAGE, DIFF, FREE = 1, 2, 3
KIND_DATA, KIND_FREE, KIND_TRUNK = 1, 2, 3


class Change:
    """What one commit makes of one page."""

    def __init__(self, seq, item, pages, payload_size):
        self.seq = seq
        cursor = Cursor(item)
        first = cursor.take(1)[0]
        self.way, self.kind = first & 15, first >> 4
        self.page = cursor.varint()
        self.crc = u32(cursor.take(4), 0)
        if self.page >= pages:
            raise Damage(f"commit {seq} changes page {self.page} of {pages}")
        if self.kind not in (KIND_DATA, KIND_FREE, KIND_TRUNK):
            raise Damage(f"commit {seq} makes page {self.page} of kind {self.kind}")
        self.ranges = []
        if self.way == IMAGE:
            start = cursor.varint()
            self.ranges.append((start, cursor.rest()))
        elif self.way == DIFF:
            self.distance = cursor.varint()
            if not 1 <= self.distance <= seq:
                raise Damage(f"commit {seq} has a diff to no commit")
            at = 0
            while cursor.left():
                at += cursor.varint()
                length = cursor.varint()
                if length == 0:
                    raise Damage(f"commit {seq} has an empty range")
                self.ranges.append((at, cursor.take(length)))
                at += length
        elif self.way != FREE or self.kind != KIND_FREE or cursor.left():
            raise Damage(f"commit {seq} changes page {self.page} in no known way")
        if any(start + len(data) > payload_size for start, data in self.ranges):
            raise Damage(f"commit {seq} writes beyond the end of page {self.page}")

    def is_whole(self):
        return self.way != DIFF

    def apply(self, payload):
        payload = bytearray(len(payload)) if self.is_whole() else bytearray(payload)
        for start, data in self.ranges:
            payload[start : start + len(data)] = data
        return bytes(payload)


def _meta(seq, item):
    cursor = Cursor(item)
    flags = cursor.take(1)[0]
    if flags > 3:
        raise Damage(f"commit {seq} has unknown flags")
    root = cursor.varint() if flags & 1 else None
    pages = cursor.varint()
    trunk = cursor.varint() if flags & 2 else None
    free = cursor.varint()
    state = State(seq, pages, root, trunk, free, cursor.rest())
    if not state.is_sound():
        raise Damage(f"commit {seq} says what no store can be")
    return state


def _commit(seq, data, payload_size):
    cursor = Cursor(data)
    items = []
    while cursor.left():
        items.append(cursor.take(cursor.varint()))
    if not items:
        raise Damage(f"commit {seq} has no meta")
    state = _meta(seq, items[0])
    changes = [Change(seq, item, state.pages, payload_size) for item in items[1:]]
    if len({change.page for change in changes}) < len(changes):
        raise Damage(f"commit {seq} changes a page twice")
    return state, changes


def commits(records, slot):
    """State and changes of each commit behind the superblock's, in order, and where its entry ends."""
    seq, parts = slot.state.seq + 1, []
    for record in records:
        if record.lsn < slot.lsn or not record.body:
            continue
        header = record.body[:16]
        if len(header) < 16:
            raise Damage(f"the record at LSN {record.lsn} is no part of an entry")
        if header[0] != VERSION:
            raise Refused(f"an entry of version {header[0]}: a newer pagekeeper wrote it")
        goes_on, ordinal = header[1], u32(header, 4)
        if ordinal == 0:
            # What stands before was never finished.
            parts = []
        if goes_on > 1 or u16(header, 2) or ordinal != len(parts) or u64(header, 8) != seq:
            raise Damage(f"the entry at LSN {record.lsn} does not follow commit {seq - 1}")
        parts.append(record.body[16:])
        if not goes_on:
            yield *_commit(seq, b"".join(parts), slot.page_size - 32), record.end
            seq, parts = seq + 1, []
