"""Pages: the page map, the data file, versions of the journal over it, and the free list. Faults are values: `Page.fault`."""

import os

from codec import crc32c, u32, u64
from entries import KIND_DATA, KIND_FREE, KIND_TRUNK

HEADER = 32
BLOCK = 4096
ENTRIES = 1008
NEVER, UNKNOWN = 0, 1


class Page:
    """A page as readers see it: its bytes, or what is wrong with them."""

    def __init__(self, number, data, source, fault=None, never=False):
        self.number, self.data, self.source, self.fault, self.never = number, data, source, fault, never

    def kind(self):
        if self.fault:
            return "damaged"
        if self.never:
            return "never-written"
        return {KIND_DATA: "data", KIND_FREE: "free", KIND_TRUNK: "trunk"}[self.data[4]]

    def seq(self):
        return u64(self.data, 16)


class MapBlock:
    """What counts of the two places of a block of the page map."""

    def __init__(self, block, places, store_id, last):
        numbers = [self._number(place, block, which, store_id) for which, place in enumerate(places)]
        whole = [(number, place) for number, place in zip(numbers, places) if number is not None]
        self.doubts = []
        # The second place is written before the first ever is.
        if numbers in ([None, None], [None, 0]):
            self.entries = None
            return
        number, place = max(whole)
        seq = u64(place, 32) if number else 0
        self.entries = place[64:]
        if number:
            self.doubts.append((u64(place, 40), u64(place, 48)))
        if len(whole) < 2 or min(whole)[0] == 0 < number:
            self.doubts.append((seq, last))

    @staticmethod
    def _number(place, block, which, store_id):
        if not any(place):
            return 0
        number = u64(place, 24)
        if (u32(place, 0) == crc32c(place[4:]) and place[4:8] == b"pkm\x01" and u64(place, 8) == block
                and u64(place, 16) == store_id and number % 2 == which and number):
            return number
        return None

    def entry(self, index):
        return UNKNOWN if self.entries is None else u32(self.entries, 4 * index)

    def is_in_doubt(self, seq):
        return any(above < seq <= to for above, to in self.doubts)


class Pages:
    def __init__(self, directory, slot, commits):
        self.slot, self.size, self.store_id = slot, slot.page_size, slot.id
        self.state, self.changes, self.commits = slot.state, {}, 0
        self.faults = []
        # Where the last commit's entry ends.
        self.end = slot.lsn
        for state, changes, self.end in commits:
            if state.pages < self.state.pages:
                self.changes = {n: found for n, found in self.changes.items() if n < state.pages}
            for change in changes:
                versions = self.changes.setdefault(change.page, [])
                if change.is_whole():
                    versions.clear()
                elif not versions and not slot.first_change_may_be_diff:
                    self.faults.append(f"commit {change.seq} begins page {change.page} with a diff")
                versions.append(change)
            self.state = state
            self.commits += 1
        self.data = open(os.path.join(directory, "data"), "rb")
        self.map = open(os.path.join(directory, "map"), "rb")
        self.is_short = os.fstat(self.data.fileno()).st_size < self.state.pages * self.size
        places = -(-slot.state.pages // ENTRIES) * 2 * BLOCK
        self.is_short |= os.fstat(self.map.fileno()).st_size < places
        self.blocks = {}

    def _map_block(self, block):
        if block not in self.blocks:
            self.map.seek(2 * block * BLOCK)
            both = self.map.read(2 * BLOCK).ljust(2 * BLOCK, b"\0")
            places = both[:BLOCK], both[BLOCK:]
            found = MapBlock(block, places, self.store_id, self.slot.state.seq)
            # One of the two places may be lost: the other one says the same.
            if found.entries is None:
                self.faults.append(f"block {block} of the page map is lost")
            self.blocks[block] = found
        return self.blocks[block]

    def _own_fault(self, number, data):
        """What is wrong with a page that is not all zeros, by itself."""
        if u32(data, 0) != crc32c(data[4:]):
            return "its checksum does not hold"
        if data[4] not in (KIND_DATA, KIND_FREE, KIND_TRUNK):
            return "its kind is unknown"
        if any(data[5:8]):
            return "its header has what must be zeros"
        if u64(data, 24) != self.store_id:
            return "it is of another store"
        if u64(data, 8) != number:
            return f"page {u64(data, 8)} stands in its place"
        if data[4] == KIND_FREE and any(data[HEADER:]):
            return "it is free and has a payload"
        return None

    def _in_file(self, number, also=()):
        """As the data file has it; `also` are other checksums that it may have."""
        self.data.seek(number * self.size)
        data = self.data.read(self.size)
        block = self._map_block(number // ENTRIES)
        entry = block.entry(number % ENTRIES)
        if not any(data):
            fault = None if entry in (NEVER, UNKNOWN) else "it was written, and zeros stand in its place"
            return Page(number, data, "file", fault, never=fault is None)
        fault = self._own_fault(number, data)
        crc = u32(data, 0)
        if fault is None and entry != UNKNOWN and not block.is_in_doubt(u64(data, 16)) and crc not in also:
            if entry == NEVER:
                fault = "it was never written, and something stands in its place"
            elif entry != {NEVER: 2, UNKNOWN: 3}.get(crc, crc):
                fault = "another page than the one that was written last"
        return Page(number, data, "file", fault)

    def page(self, number):
        versions = self.changes.get(number)
        if not versions:
            return self._in_file(number)
        if versions[0].is_whole():
            payload = bytes(self.size - HEADER)
        else:
            base = self._in_file(number, also={version.crc for version in versions})
            if base.fault or base.never:
                return Page(number, base.data, "journal", base.fault or "a diff to a page that was never written")
            payload = base.data[HEADER:]
        for version in versions:
            payload = version.apply(payload)
        last = versions[-1]
        rest = b"".join((bytes([last.kind, 0, 0, 0]), number.to_bytes(8, "little"), last.seq.to_bytes(8, "little"),
                         self.store_id.to_bytes(8, "little"), payload))
        data = last.crc.to_bytes(4, "little") + rest
        return Page(number, data, "journal", self._own_fault(number, data))

    def free_list(self):
        """The trunks, each with the pages that it names; and what is wrong."""
        trunks, seen, at = [], set(), self.state.trunk
        while at is not None:
            if at >= self.state.pages or at in seen:
                return trunks, f"page {at} can't be in the free list, or is in it twice"
            seen.add(at)
            page = self.page(at)
            if page.kind() != "trunk":
                return trunks, f"page {at} is no trunk: {page.kind()}"
            payload = page.data[HEADER:]
            count = u32(payload, 8)
            if count > (len(payload) - 16) // 8 or any(payload[12:16]) or any(payload[16 + 8 * count :]):
                return trunks, f"the trunk in page {at} is not sound"
            named = [u64(payload, 16 + 8 * index) for index in range(count)]
            for number in named:
                if number >= self.state.pages or number in seen:
                    return trunks, f"page {number} can't be in the free list, or is in it twice"
                seen.add(number)
            trunks.append((at, named))
            following = u64(payload, 0)
            at = following - 1 if following else None
        if len(seen) != self.state.free:
            return trunks, f"the free list has {len(seen)} pages, not {self.state.free}"
        return trunks, None
