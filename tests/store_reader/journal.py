"""The journal: control file, ring, records, epochs, and where the log ends.

Fails with Damage where the log is corrupt, and with Refused where a newer version wrote it.
"""

import os
import struct

from codec import Damage, Refused, crc32c, round_up, u16, u32, u64

SLOT = 4096
BLOCK = 4096
VERSION = 3
HEADER = 24
DATA, PADDING, PART = 1, 2, 4
NOTHING_KNOWN = 2**32 - 1
CLOSED = 2


class Control:
    """A slot of the control file that is whole; `Control.read` gives None for others."""

    def __init__(self, data):
        self.number = u64(data, 8)
        self.id = u64(data, 16)
        self.file_bytes = u64(data, 24)
        self.files = u32(data, 32)
        self.state = u32(data, 36)
        self.checkpoint = u64(data, 40)
        self.salt = u32(data, 48)
        self.settled = u64(data, 64)
        self.longest = u64(data, 72)
        count = min(u32(data, 80), 256)
        self.epochs = [(u64(data, 88 + 12 * i), u32(data, 96 + 12 * i)) for i in range(count)]

    @staticmethod
    def read(data):
        if len(data) < SLOT or data[:6] != b"pkredo" or u32(data, 52) != crc32c(data[:52]):
            return None
        version = u16(data, 6)
        if version != VERSION:
            raise Refused(f"the journal was written by another pagekeeper: version {version}")
        return Control(data) if u32(data, 4092) == crc32c(data[:4092]) else None


class Record:
    def __init__(self, lsn, kind, body, durable):
        self.lsn, self.kind, self.body, self.durable = lsn, kind, body, durable
        self.end = lsn + round_up(HEADER + len(body), 8)


class Journal:
    """All data records from the log checkpoint on: `records`; and where the log ends: `end`."""

    @staticmethod
    def of(directory, log_id):
        """That one of the two places that has this id, or else the first."""
        places = [os.path.join(directory, name) for name in ("journal", "journal.2")]
        places = [place for place in places if os.path.isdir(place)]
        has_it = [place for place in places if Journal.id_in(place) == log_id]
        return Journal((has_it or places or [os.path.join(directory, "journal")])[0])

    @staticmethod
    def id_in(directory):
        try:
            with open(os.path.join(directory, "control"), "rb") as file:
                data = file.read()
            slots = [slot for slot in (Control.read(data[at : at + SLOT]) for at in (0, SLOT)) if slot]
        except (OSError, Refused):
            return None
        return max(slots, key=lambda slot: slot.number).id if slots else None

    def __init__(self, directory):
        with open(os.path.join(directory, "control"), "rb") as file:
            data = file.read()
        self.slots = [Control.read(data[at : at + SLOT]) for at in (0, SLOT)]
        whole = [slot for slot in self.slots if slot]
        if not whole:
            raise Damage("neither slot of the journal's control file is whole")
        self.control = max(whole, key=lambda slot: slot.number)
        self.files = []
        for number in range(self.control.files):
            with open(os.path.join(directory, f"redo.{number:03}"), "rb") as file:
                self.files.append(file.read())
            if len(self.files[-1]) != self.control.file_bytes:
                raise Damage(f"file {number} of the ring was cut off")
        ring = self.control.file_bytes * self.control.files
        self.wraparound = self.control.checkpoint // BLOCK * BLOCK + ring
        self.records = []
        self.damaged_paddings = []
        self.end = self._read()

    def _bytes(self, lsn, count):
        size, found = self.control.file_bytes, b""
        while count > 0:
            file = self.files[lsn // size % self.control.files]
            at = lsn % size
            piece = file[at : min(at + count, size)]
            found += piece
            lsn, count = lsn + len(piece), count - len(piece)
        return found

    def _header(self, lsn, salt):
        """The header, if one with this LSN and salt stands there."""
        header = self._bytes(lsn, HEADER)
        return header if u64(header, 8) == lsn and u32(header, 16) == salt else None

    def _record(self, lsn, salt):
        """A whole record, or None."""
        header = self._header(lsn, salt) if lsn + HEADER <= self.wraparound else None
        if header is None:
            return None
        length, kind = u32(header, 4) & (1 << 28) - 1, u32(header, 4) >> 28
        if lsn + round_up(HEADER + length, 8) > self.wraparound:
            return None
        body = self._bytes(lsn + HEADER, length)
        if crc32c(header[4:], crc32c(body)) != u32(header, 0):
            return None
        behind = u32(header, 20)
        durable = None if behind == NOTHING_KNOWN else lsn - 8 * behind
        return Record(lsn, kind, body, durable)

    def _end_of_damaged_padding(self, lsn, salt, upto):
        """Where the padding ends that stands here and is damaged, or None."""
        end = round_up(lsn, BLOCK)
        if 0 < end - lsn < HEADER:
            end += BLOCK
        if end == lsn or end > upto:
            return None
        found = self._bytes(lsn, end - lsn)
        body = bytes(end - lsn - HEADER)

        def header(kind):
            return struct.pack("<IQI", kind << 28 | len(body), lsn, salt) + found[20:HEADER]

        def is_summed(kind):
            return u32(found, 0) == crc32c(header(kind), crc32c(body))

        is_other = found[4:] != header(PADDING) + body or is_summed(DATA)
        return None if is_other and not is_summed(PADDING) else end

    def _read(self):
        control = self.control
        at, salt, epochs = control.checkpoint, control.salt, list(control.epochs)
        while True:
            if epochs and at == epochs[0][0]:
                at, salt = round_up(at, BLOCK), epochs.pop(0)[1]
                # One in which no record is counts for nothing.
                while epochs and round_up(epochs[0][0], BLOCK) == at:
                    salt = epochs.pop(0)[1]
                continue
            if control.state == CLOSED and not epochs and at == control.settled:
                return at
            record = self._record(at, salt)
            if record is None or epochs and record.end > epochs[0][0]:
                upto = min(epochs[0][0], self.wraparound) if epochs else self.wraparound
                is_known = epochs or at < control.settled
                end = self._end_of_damaged_padding(at, salt, upto) if is_known else None
                if end is None:
                    break
                self.damaged_paddings.append(at)
                at = end
                continue
            if record.kind not in (DATA, PADDING, PART):
                raise Refused(f"the journal has a record of kind {record.kind}: a newer pagekeeper wrote it")
            if record.kind == PART:
                raise Damage(f"the journal has a part of a group at LSN {at}")
            if record.kind == DATA:
                self.records.append(record)
            at = record.end
        if epochs or at < control.settled:
            raise Damage(f"the journal is corrupt at LSN {at}, which was durable")
        self._search(at, salt)
        return at

    def _search(self, end, salt):
        """Fails if a record behind the end knows that what stood at the end was durable."""
        reach = self.control.longest + 2 * BLOCK
        at, until = end + 8, end + reach
        while at <= until and at + HEADER <= self.wraparound:
            if self._header(at, salt):
                until = at + reach
                record = self._record(at, salt)
                if record and record.durable is not None and record.durable > end:
                    raise Damage(f"the journal is corrupt at LSN {end}: the record at {at} knows it as durable")
            at += 8
