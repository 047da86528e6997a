"""A reader of page stores that shares nothing with pagekeeper: written from docs/src/store-format.md alone.

    python3 tests/store_reader DIRECTORY

prints one JSON object: what it takes from the store, with the names that `pagekeeper store stat`, `dump` and
`verify` have for it in --json. Changes nothing. Exit code 1 if anything is damaged, or the store is not to be
opened: then the object has "refused" alone.
"""

import json
import os
import sys

import superblock
from codec import Damage, Refused
from entries import commits
from journal import Journal
from pages import Pages


def read(directory):
    slots, slot = superblock.read(directory)
    journal = Journal.of(directory, slot.journal_id)
    if journal.control.id != slot.journal_id:
        raise Refused("the journal is another store's")
    if journal.control.checkpoint > slot.lsn or journal.end < slot.lsn:
        raise Damage("the journal does not have what the superblock begins with")
    pages = Pages(directory, slot, commits(journal.records, slot))
    if pages.is_short:
        raise Damage("the data file or the page map was cut off")
    return slots, slot, journal, pages


def report(slots, slot, journal, pages):
    state = pages.state
    listed = [pages.page(number) for number in range(state.pages)]
    trunks, fault = pages.free_list()
    faults = list(pages.faults)
    faults += [f"slot {which} of the superblock is not whole" for which in (0, 1) if not slots[which]]
    faults += [f"slot {which} of the control file is not whole" for which in (0, 1) if not journal.slots[which]]
    faults += [f"the padding of the journal at LSN {lsn} is damaged" for lsn in journal.damaged_paddings]
    faults += [f"page {page.number}: {page.fault}" for page in listed if page.fault]
    faults += [fault] if fault else []
    kinds = [page.kind() for page in listed]
    # One whose room was given back reads as never written.
    free = {page for trunk, named in trunks for page in (trunk, *named)}
    given_back = sum(1 for page, kind in enumerate(kinds) if kind == "never-written" and page in free)
    faults += [f"page {page} is in the free list, and of kind {kinds[page]}"
               for page in free if kinds[page] in ("data", "trunk") and page not in dict(trunks)]
    stat = {
        "page_size": slot.page_size,
        "pages": state.pages,
        "free_pages": state.free,
        "root": state.root,
        "metadata_bytes": len(state.metadata),
        "seq": state.seq,
        "checkpoint_seq": slot.state.seq,
        "journal_bytes": pages.end - slot.lsn,
        "max_journal_bytes": slot.limit,
        "full_page_images": not slot.first_change_may_be_diff,
        "superblocks": [whole and {"number": whole.number, "checkpoint_seq": whole.state.seq,
                                   "checkpoint_lsn": whole.lsn} for whole in slots],
        "recovery": {"commits": pages.commits, "pages": len(pages.changes)},
    }
    dump = {
        "page_size": slot.page_size,
        "seq": state.seq,
        "page_count": state.pages,
        "root": state.root,
        "metadata": state.metadata.hex(),
        "free_list": {
            "pages": sum(1 + len(named) for _, named in trunks),
            "trunks": [{"page": page, "names": len(named)} for page, named in trunks],
            "whole": fault is None,
        },
        "pages": [{"page": page.number, "kind": kind, "seq": page.seq(), "crc": page.data[3::-1].hex(),
                   "source": page.source} for page, kind in zip(listed, kinds)],
    }
    verify = {
        "sound": not faults,
        "data_pages": kinds.count("data"),
        "free_pages": kinds.count("free") + kinds.count("trunk") + given_back,
        "never_written_pages": kinds.count("never-written") - given_back,
        "whole_superblocks": sum(1 for whole in slots if whole),
    }
    return {"stat": stat, "dump": dump, "verify": verify, "faults": faults}


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__.strip())
    try:
        found = report(*read(sys.argv[1]))
    except (Damage, Refused, OSError) as error:
        found = {"refused": str(error), "verify": {"sound": False}}
    json.dump(found, sys.stdout)
    print()
    sys.exit(0 if found["verify"]["sound"] else 1)


if __name__ == "__main__":
    main()
