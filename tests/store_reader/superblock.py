"""The superblock: which slot counts, and what it says. Fails with Refused, as an opening must."""

import os

from codec import Refused, crc32c, u16, u32, u64

SLOT = 4096
VERSION = 2
MOST_PAGES = 2**32 - 2
MOST_METADATA = 1024


class State:
    """A store as of one commit."""

    def __init__(self, seq, pages, root, trunk, free, metadata):
        self.seq, self.pages, self.root, self.trunk, self.free, self.metadata = (
            seq, pages, root, trunk, free, metadata)

    def is_sound(self):
        return (self.pages <= MOST_PAGES and self.free <= self.pages and len(self.metadata) <= MOST_METADATA
                and (self.trunk is None or self.trunk < self.pages))


class Slot:
    """A slot that is whole; `Slot.read` gives None for others."""

    def __init__(self, data):
        flags = u16(data, 10)
        self.flags = flags
        self.first_change_may_be_diff = bool(flags & 1)
        self.page_size = u32(data, 12)
        self.number = u64(data, 16)
        self.id = u64(data, 24)
        self.lsn = u64(data, 40)
        self.limit = u64(data, 48)
        self.metadata_length = u16(data, 88)
        self.state = State(
            seq=u64(data, 32), pages=u64(data, 56), root=u64(data, 64) if flags & 2 else None,
            trunk=u64(data, 72) if flags & 4 else None, free=u64(data, 80),
            metadata=data[96 : 96 + min(self.metadata_length, MOST_METADATA)])
        self.journal_id = u64(data, 1120)

    def counts(self):
        size = self.page_size
        return (self.flags < 8 and 4096 <= size <= 65536 and size & size - 1 == 0
                and self.metadata_length <= MOST_METADATA and self.state.is_sound()
                and 64 << 10 <= self.limit <= 1 << 40 and self.number < 1 << 63 and self.state.seq < 1 << 63)

    @staticmethod
    def read(data):
        if len(data) < SLOT or data[:8] != b"pkstore\0" or u32(data, 4092) != crc32c(data[:4092]):
            return None
        version = u16(data, 8)
        if version != VERSION:
            raise Refused(f"written by another pagekeeper: version {version}")
        slot = Slot(data)
        return slot if slot.counts() else None


def read(directory):
    """Both slots, and the one that counts."""
    path = os.path.join(directory, "superblock")
    try:
        with open(path, "rb") as file:
            data = file.read()
    except FileNotFoundError:
        names = set(os.listdir(directory))
        if "superblock.new" in names:
            raise Refused("the making of this store was interrupted: it never had a commit") from None
        if "superblock.copy" in names:
            raise Refused("the making of this copy was interrupted") from None
        if names & {"data", "map", "journal", "journal.2", "warm", "warm.new", "superblock.repaired"}:
            raise Refused("its superblock was lost") from None
        raise Refused("no store here") from None
    slots = [Slot.read(data[at : at + SLOT]) for at in (0, SLOT)]
    whole = [slot for slot in slots if slot]
    if not whole:
        raise Refused("neither of its two slots can be used")
    return slots, max(whole, key=lambda slot: slot.number)
