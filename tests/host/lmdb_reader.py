"""Reads an LMDB database at random, for as many seconds as a line of its input says.

Then it prints how many gets that were. Without a database it makes one.
"""
import os
import random
import sys
import time

import lmdb

directory, keys, read_ahead = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "ahead"
if not os.path.exists(directory):
    with lmdb.open(directory, map_size=1 << 30, sync=False) as env:
        value = b"v" * 2000
        for start in range(0, keys, 1000):
            with env.begin(write=True) as txn:
                for key in range(start, start + 1000):
                    txn.put(b"%08d" % key, value, append=True)
        env.sync(True)
    sys.exit()
env = lmdb.open(directory, map_size=1 << 30, readonly=True, readahead=read_ahead)
for line in sys.stdin:
    gets, end = 0, time.monotonic() + float(line)
    while time.monotonic() < end:
        with env.begin() as txn:
            assert len(txn.get(b"%08d" % random.randrange(keys))) == 2000
        gets += 1
    print(gets, flush=True)
