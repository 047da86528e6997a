"""The library as seen by ctypes: `smoke.py LIBRARY HEADER DIRECTORY`. Each part is used once, and each function is called
with zeros for all arguments."""

import ctypes
import errno
import os
import re
import resource
import signal
import sys
from ctypes import Structure, byref, c_char_p, c_int, c_size_t, c_uint32, c_uint64, c_void_p

LIBRARY, HEADER, DIRECTORY = sys.argv[1:]
pk = ctypes.CDLL(LIBRARY)
pk.pk_error_message.restype = c_char_p
pk.pk_status_name.restype = c_char_p
pk.pk_version.restype = c_char_p
for name in ["file_size", "file_id", "redo_checkpoint_lsn", "redo_end_lsn", "redo_durable_lsn", "redo_longest_record", "read_seq"]:
    getattr(pk, "pk_" + name).restype = c_uint64
for name in ["page_data", "store_page_data"]:
    getattr(pk, "pk_" + name).restype = c_void_p
for name in ["page_size", "store_page_size"]:
    getattr(pk, "pk_" + name).restype = c_size_t


def names(status):
    return pk.pk_status_name(status).decode()


def check(status, wanted="PK_OK"):
    assert names(status) == wanted, (names(status), pk.pk_error_message())


def fields_of(structure):
    """Returns the fields of a structure, from the header."""
    text = open(HEADER).read()
    body = re.search(r"typedef struct %s \{(.*?)\} %s;" % (structure, structure), text, re.S).group(1)
    body = re.sub(r"/\*.*?\*/", "", body, flags=re.S)
    kinds = {"size_t": c_size_t, "uint64_t": c_uint64, "uint32_t": c_uint32, "pk_verifier": c_void_p, "int": c_int, "pk_status": c_int}
    found = []
    for declared in filter(None, map(str.strip, body.split(";"))):
        kind, name = declared.rsplit(None, 1)
        found.append((name.lstrip("*"), c_void_p if "*" in declared else kinds[kind]))
    return found


def structure(name):
    made = type(name, (Structure,), {"_fields_": fields_of(name)})

    def begin(**given):
        value = made(**given)
        value.struct_size = ctypes.sizeof(made)
        return value

    return begin


def path(name):
    return os.path.join(DIRECTORY, name).encode()


def zeros():
    """Calls every function of the header with zeros and NULLs: it fails with a message, or does nothing."""
    text = re.sub(r"/\*.*?\*/", "", open(HEADER).read(), flags=re.S)
    functions = re.findall(r"^(pk_status|void|uint64_t|size_t|int|const void \*|const char \*)\s*(pk_\w+)\(", text, re.M)
    assert len(functions) > 60, functions
    needs_nothing = {"pk_redo_close", "pk_binlog_close", "pk_store_close"}
    for result, name in functions:
        got = getattr(pk, name)(*[c_uint64(0)] * 7)
        if result == "pk_status":
            check(got, "PK_OK" if name in needs_nothing else "PK_MISUSE")
            if name not in needs_nothing:
                assert pk.pk_error_message(), name
    # Names of missing things, and invalid numbers.
    check(pk.pk_store_open(path("nothing"), byref(structure("pk_store_options")(create=1)), byref(c_void_p())), "PK_NOT_FOUND")
    check(pk.pk_redo_open(path("nothing"), None, byref(c_void_p())), "PK_NOT_FOUND")
    check(pk.pk_cache_open(byref(structure("pk_cache_options")(backend=9)), byref(c_void_p())), "PK_MISUSE")
    check(pk.pk_cache_open(byref(structure("pk_cache_options")(page_size=5000)), byref(c_void_p())), "PK_MISUSE")
    assert names(99) == names(-1) == "unknown"


def cache():
    with open(path("file"), "wb") as file:
        file.write(bytes(range(250)) * 100)
    handle, file, page = c_void_p(), c_void_p(), c_void_p()
    check(pk.pk_cache_open(byref(structure("pk_cache_options")(memory=4 << 20)), byref(handle)))
    check(pk.pk_file_open(handle, path("missing"), byref(file)), "PK_NOT_FOUND")
    assert b"missing" in pk.pk_error_message() and pk.pk_error_number() == 2
    check(pk.pk_file_open(handle, path("file"), byref(file)))
    assert pk.pk_file_size(file) == 25000
    buffer, read = ctypes.create_string_buffer(1000), c_size_t()
    check(pk.pk_file_read(file, c_uint64(24500), buffer, c_size_t(1000), byref(read)))
    assert read.value == 500 and buffer.raw[:500] == (bytes(range(250)) * 2)
    check(pk.pk_file_read(file, c_uint64(24500), buffer, c_size_t(1000), None), "PK_END")
    check(pk.pk_page_get(file, c_uint64(7), byref(page)), "PK_NOT_FOUND")
    check(pk.pk_page_get(file, c_uint64(6), byref(page)))
    assert pk.pk_page_size(page) == 25000 - 6 * 4096
    pk.pk_page_release(page)
    check(pk.pk_cache_set_memory(handle, c_uint64(5 << 20)), "PK_MISUSE")
    with open(path("file"), "ab") as more:
        more.write(b"more")
    stats = structure("pk_cache_stats")()
    check(pk.pk_cache_get_stats(handle, byref(stats)))
    assert stats.misses > 0 and stats.page_size == 4096
    pk.pk_file_close(file)
    pk.pk_cache_close(handle)


def owned():
    """Writes a file while it is read, by the library and by the test's own calls."""
    handle, file, other, page, read = c_void_p(), c_void_p(), c_void_p(), c_void_p(), c_size_t()
    check(pk.pk_cache_open(None, byref(handle)))
    check(pk.pk_file_open_owned(handle, path("owned"), c_uint32(1), c_uint64(100), byref(file)), "PK_NOT_FOUND")
    check(pk.pk_file_open_owned(handle, path("owned"), c_uint32(3), c_uint64(100), byref(file)), "PK_MISUSE")
    check(pk.pk_file_open_owned(handle, path("owned"), c_uint32(0), c_uint64(0), byref(file)), "PK_MISUSE")
    check(pk.pk_file_open_owned(handle, path("owned"), c_uint32(2), c_uint64(600), byref(file)))
    check(pk.pk_file_open_owned(handle, path("owned"), c_uint32(2), c_uint64(600), byref(other)), "PK_EXISTS")
    size, buffer = 600 * 4096, ctypes.create_string_buffer(600 * 4096)
    assert pk.pk_file_size(file) == size
    check(pk.pk_page_get(file, c_uint64(0), byref(page)), "PK_NOT_FOUND")
    content = b"".join(bytes([number % 251]) * 4096 for number in range(600))
    # More than one write takes, from unaligned memory.
    unaligned = ctypes.create_string_buffer(b"x" + content, size + 1)
    check(pk.pk_file_write_pages(file, c_uint64(0), byref(unaligned, 1), c_size_t(size), 0))
    with open(path("owned"), "rb") as plain:
        assert plain.read() == content
    check(pk.pk_file_read(file, c_uint64(0), buffer, c_size_t(size), byref(read)))
    assert buffer.raw == content and read.value == size
    stats = structure("pk_cache_stats")()
    check(pk.pk_cache_get_stats(handle, byref(stats)))
    assert stats.misses <= 1, stats.misses  # what was written is there
    check(pk.pk_file_write_pages(file, c_uint64(7), b"y" * 4096, c_size_t(4096), 1))
    check(pk.pk_file_read(file, c_uint64(7 * 4096 + 1), buffer, c_size_t(3), None))
    assert buffer.raw[:3] == b"yyy"
    for bytes_, first, wanted in [(4095, 0, "PK_MISUSE"), (4096, 600, "PK_NOT_FOUND"), (8192, 2**64 - 1, "PK_NOT_FOUND")]:
        check(pk.pk_file_write_pages(file, c_uint64(first), buffer, c_size_t(bytes_), 0), wanted)
        check(pk.pk_file_install(file, c_uint64(first), buffer, c_size_t(bytes_), 0), wanted)
    # Written by the test's own calls: the cache is notified.
    with open(path("owned"), "r+b") as plain:
        plain.seek(8 * 4096)
        plain.write(b"z" * 8192)
    check(pk.pk_file_discard(file, c_uint64(8), c_uint64(1)))
    check(pk.pk_file_install(file, c_uint64(9), b"z" * 4096, c_size_t(4096), 0))
    check(pk.pk_file_discard(file, c_uint64(500), c_uint64(2**64 - 1)))
    check(pk.pk_file_read(file, c_uint64(8 * 4096), buffer, c_size_t(8192), None))
    assert buffer.raw[:8192] == b"z" * 8192
    check(pk.pk_file_sync(file))
    # A file with a large limit: all pages are removed at once.
    check(pk.pk_file_open_owned(handle, path("large"), c_uint32(0), c_uint64(20_000_000), byref(other)))
    check(pk.pk_file_write_pages(other, c_uint64(0), b"a" * 4096, c_size_t(4096), 0))
    check(pk.pk_file_discard(other, c_uint64(0), c_uint64(2**64 - 1)))
    pk.pk_file_close(other)
    # An immutable file cannot be written.
    check(pk.pk_file_open(handle, path("file"), byref(other)))
    check(pk.pk_file_write_pages(other, c_uint64(0), buffer, c_size_t(4096), 0), "PK_MISUSE")
    check(pk.pk_file_sync(other), "PK_MISUSE")
    pk.pk_file_close(other)
    pk.pk_file_close(file)
    pk.pk_cache_close(handle)


def full():
    """Writes pages to a full disk: the cache has the same content as the device."""
    handle, file, buffer = c_void_p(), c_void_p(), ctypes.create_string_buffer(4096)
    check(pk.pk_cache_open(None, byref(handle)))
    check(pk.pk_file_open_owned(handle, path("full"), c_uint32(0), c_uint64(1000), byref(file)))
    check(pk.pk_file_write_pages(file, c_uint64(0), b"a" * 4096, c_size_t(4096), 0))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    check(pk.pk_file_write_pages(file, c_uint64(0), b"b" * 8192, c_size_t(8192), 0), "PK_IO")
    assert pk.pk_error_number() == errno.EFBIG
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    check(pk.pk_file_read(file, c_uint64(0), buffer, c_size_t(4096), None))
    with open(path("full"), "rb") as plain:
        assert plain.read(4096) == buffer.raw
    pk.pk_file_close(file)
    pk.pk_cache_close(handle)


def queue():
    handle, file, waits = c_void_p(), c_void_p(), c_void_p()
    check(pk.pk_cache_open(None, byref(handle)))
    check(pk.pk_file_open(handle, path("file"), byref(file)))
    check(pk.pk_queue_open(byref(waits)))
    done, count = type("done", (Structure,), {"_fields_": fields_of("pk_completion")})(), c_size_t()
    check(pk.pk_queue_collect(waits, byref(done), c_size_t(1), 0, byref(count)), "PK_END")
    buffer = ctypes.create_string_buffer(250)
    check(pk.pk_queue_read(waits, file, c_uint64(250), buffer, c_size_t(250), c_uint64(42)))
    check(pk.pk_queue_collect(waits, byref(done), c_size_t(1), -1, byref(count)))
    assert (count.value, done.user_data, done.read, done.status) == (1, 42, 250, 0) and buffer.raw == bytes(range(250))
    # Closed while reads are in flight.
    for nth in range(50):
        check(pk.pk_queue_read(waits, file, c_uint64(nth * 300), buffer, c_size_t(250), c_uint64(nth)))
    pk.pk_queue_close(waits)
    pk.pk_file_close(file)
    pk.pk_cache_close(handle)


def bulk():
    output, report = c_void_p(), structure("pk_bulk_report")()
    check(pk.pk_bulk_create(path("bulk"), None, byref(output)))
    check(pk.pk_bulk_write(output, b"x" * 9000, c_size_t(9000)))
    check(pk.pk_bulk_finish(output, byref(report)))
    assert report.bytes == 9000 == os.path.getsize(path("bulk"))
    check(pk.pk_bulk_create(path("bulk"), None, byref(output)), "PK_EXISTS")
    check(pk.pk_bulk_create(path("abandoned"), None, byref(output)))
    pk.pk_bulk_abandon(output)


def redo():
    log, reader, lsn = c_void_p(), c_void_p(), c_uint64()
    options = structure("pk_redo_options")(files=1, file_bytes=1 << 20)
    check(pk.pk_redo_create(path("redo"), byref(options), byref(log)))
    check(pk.pk_redo_open(path("redo"), None, byref(c_void_p())), "PK_LOCKED")
    check(pk.pk_redo_append(log, b"one", c_size_t(3), byref(lsn)))
    check(pk.pk_redo_wait(log, lsn))
    check(pk.pk_redo_wait(log, c_uint64(1 << 40)), "PK_NOT_FOUND")
    check(pk.pk_redo_append(log, b"x" * (1 << 21), c_size_t(1 << 21), None), "PK_TOO_LARGE")
    check(pk.pk_redo_read(log, c_uint64(pk.pk_redo_checkpoint_lsn(log)), byref(reader)))
    body, size = c_char_p(), c_size_t()
    check(pk.pk_redo_next(reader, byref(body), byref(size), None))
    assert ctypes.string_at(body, size.value) == b"one"
    check(pk.pk_redo_next(reader, byref(body), byref(size), None), "PK_END")
    pk.pk_redo_reader_close(reader)
    check(pk.pk_redo_close(log))


def binlog():
    class Position(Structure):
        _fields_ = [("segment", c_uint64), ("offset", c_uint64)]

    class Record(Structure):
        _fields_ = [("bytes", c_char_p), ("size", c_size_t)]

    class Event(Structure):
        _fields_ = [("bytes", c_void_p), ("size", c_size_t), ("position", Position), ("next", Position), ("ends_group", c_int)]

    log, follower, first, end, event = c_void_p(), c_void_p(), Position(), Position(), Event()
    check(pk.pk_binlog_open(path("binlog"), None, byref(log)))
    check(pk.pk_binlog_first(log, byref(first)))
    check(pk.pk_binlog_follow(log, first, 0, byref(follower)))
    check(pk.pk_follower_next(follower, 1, byref(event)), "PK_TIMED_OUT")
    records = (Record * 2)(Record(b"insert", 6), Record(b"commit", 6))
    check(pk.pk_binlog_append(log, records, c_size_t(2), byref(end)))
    for wanted, ends in [(b"insert", 0), (b"commit", 1)]:
        check(pk.pk_follower_next(follower, -1, byref(event)))
        assert (ctypes.string_at(event.bytes, event.size), event.ends_group) == (wanted, ends)
    assert (event.next.segment, event.next.offset) == (end.segment, end.offset)
    check(pk.pk_binlog_append(log, records, c_size_t(0), None), "PK_MISUSE")
    last = Position()
    is_before = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p, c_size_t)(lambda _, bytes, size: ctypes.string_at(bytes, size) != b"none")
    present_end = Position()
    check(pk.pk_binlog_end(log, byref(present_end)))
    check(pk.pk_binlog_partition_point(log, is_before, None, byref(last)))
    assert (last.segment, last.offset) == (present_end.segment, present_end.offset)
    check(pk.pk_binlog_partition_point(log, None, None, byref(last)), "PK_MISUSE")
    check(pk.pk_binlog_since(log, ctypes.c_uint64(2**64 - 1), byref(last)), "PK_MISUSE")
    for call in [pk.pk_binlog_since, pk.pk_binlog_last_bytes]:
        check(call(log, ctypes.c_uint64(0), byref(last)))
        assert last.segment == first.segment
    check(pk.pk_binlog_append(log, records, c_size_t(1), byref(last)))
    check(pk.pk_binlog_truncate(log, Position(end.segment, end.offset + 8), 1), "PK_NOT_FOUND")
    check(pk.pk_binlog_truncate(log, end, 0), "PK_LOCKED")
    check(pk.pk_binlog_truncate(log, end, 1))
    check(pk.pk_follower_next(follower, 1, byref(event)), "PK_TOO_OLD")
    pk.pk_follower_close(follower)
    check(pk.pk_binlog_follow(log, end, 0, byref(follower)))
    check(pk.pk_binlog_rotate(log))
    check(pk.pk_binlog_close(log))
    check(pk.pk_follower_next(follower, -1, byref(event)), "PK_END")
    pk.pk_follower_close(follower)


def store():
    handle, txn, snapshot, page, seq = c_void_p(), c_void_p(), c_void_p(), c_uint64(), c_uint64()
    options = structure("pk_store_options")(memory=8 << 20, journal_bytes=1 << 20)
    check(pk.pk_store_open(path("store"), byref(options), byref(handle)))
    check(pk.pk_store_begin_write(handle, byref(txn)))
    check(pk.pk_write_allocate(txn, byref(page)))
    check(pk.pk_write_change(txn, page, c_size_t(3), b"abc", c_size_t(3)))
    check(pk.pk_write_change(txn, page, c_size_t(4095), b"abc", c_size_t(3)), "PK_MISUSE")
    check(pk.pk_write_change(txn, page, c_size_t(2**64 - 1), b"abc", c_size_t(3)), "PK_MISUSE")
    check(pk.pk_write_set_root(txn, page))
    check(pk.pk_write_commit(txn, 0, byref(seq)))
    assert seq.value == 1
    check(pk.pk_store_begin_read(handle, byref(snapshot)))
    buffer, read, root, place = ctypes.create_string_buffer(8), c_size_t(), c_uint64(), c_void_p()
    check(pk.pk_read_get_root(snapshot, byref(root)))
    check(pk.pk_read_copy(snapshot, root, c_size_t(0), buffer, c_size_t(8), byref(read)))
    assert buffer.raw == b"\0\0\0abc\0\0" and read.value == 8
    check(pk.pk_read_copy(snapshot, c_uint64(99), c_size_t(0), buffer, c_size_t(8), None), "PK_NOT_FOUND")
    check(pk.pk_read_page(snapshot, root, byref(place)))
    stat, faults = structure("pk_store_stat")(), c_uint64(9)
    check(pk.pk_store_get_stat(handle, byref(stat)))
    assert stat.page_size == 4096 and stat.payload_size == pk.pk_store_page_size(place) and stat.seq == 1
    check(pk.pk_store_verify(handle, byref(faults)))
    assert faults.value == 0
    check(pk.pk_store_backup(handle, path("copy"), byref(seq)))
    check(pk.pk_store_backup(handle, path("copy"), byref(seq)), "PK_EXISTS")
    # The store is closed with its last snapshot; a page of it stays.
    check(pk.pk_store_close(handle))
    check(pk.pk_store_open(path("store"), None, byref(handle)), "PK_LOCKED")
    pk.pk_read_end(snapshot)
    assert ctypes.string_at(pk.pk_store_page_data(place) + 3, 3) == b"abc"
    pk.pk_store_page_release(place)
    read_only = structure("pk_store_options")(read_only=1)
    check(pk.pk_store_open(path("copy"), byref(read_only), byref(handle)))
    check(pk.pk_store_begin_write(handle, byref(txn)), "PK_READ_ONLY")
    check(pk.pk_store_close(handle))


def copies():
    """Makes a backup, and restores a store from it."""
    handle, txn, page, seq = c_void_p(), c_void_p(), c_uint64(), c_uint64()
    small = structure("pk_store_options")(memory=8 << 20, journal_bytes=1 << 20)

    def first_bytes(directory):
        opened, snapshot, buffer = c_void_p(), c_void_p(), ctypes.create_string_buffer(5)
        check(pk.pk_store_open(directory, byref(small), byref(opened)))
        check(pk.pk_store_begin_read(opened, byref(snapshot)))
        check(pk.pk_read_copy(snapshot, page, c_size_t(0), buffer, c_size_t(5), None))
        pk.pk_read_end(snapshot)
        check(pk.pk_store_close(opened))
        return buffer.raw

    check(pk.pk_store_open(path("source"), byref(small), byref(handle)))
    check(pk.pk_store_begin_write(handle, byref(txn)))
    check(pk.pk_write_allocate(txn, byref(page)))
    check(pk.pk_write_commit(txn, 0, None))
    for nth, what in enumerate([b"first", b"again"]):
        check(pk.pk_store_begin_write(handle, byref(txn)))
        check(pk.pk_write_change(txn, page, c_size_t(0), what, c_size_t(len(what))))
        check(pk.pk_write_commit(txn, 0, None))
        check(pk.pk_store_backup(handle, path("backup.%d" % nth), None))
    check(pk.pk_store_close(handle))
    check(pk.pk_store_restore(path("backup.0"), path("restored.0"), byref(seq)))
    assert seq.value == 2 and first_bytes(path("restored.0")) == b"first"
    check(pk.pk_store_restore(path("backup.1"), path("restored.1"), None))
    assert first_bytes(path("restored.1")) == b"again"
    check(pk.pk_store_restore(path("backup.1"), path("restored.1"), None), "PK_EXISTS")
    check(pk.pk_store_restore(path("none"), path("gap"), None), "PK_NOT_FOUND")
    with open(path("backup.1/data"), "r+b") as rotten:
        rotten.seek(100)
        byte = rotten.read(1)
        rotten.seek(100)
        rotten.write(bytes([byte[0] ^ 1]))
    check(pk.pk_store_restore(path("backup.1"), path("rotten"), None), "PK_CORRUPT")
    assert not os.path.exists(path("gap")) and not os.path.exists(path("rotten"))


def tree():
    handle, txn, snapshot, root, size = c_void_p(), c_void_p(), c_void_p(), c_uint64(), c_size_t()
    options = structure("pk_store_options")(memory=8 << 20, journal_bytes=1 << 20)
    check(pk.pk_store_open(path("map"), byref(options), byref(handle)))
    check(pk.pk_store_begin_write(handle, byref(txn)))
    check(pk.pk_map_create(txn, byref(root)))
    entries = {b"%04d" % number: b"v" * (number * 7 % 3000) for number in range(100)}
    for key, value in entries.items():
        check(pk.pk_map_put(txn, root, key, c_size_t(4), value, c_size_t(len(value))))
    check(pk.pk_map_put(txn, root, b"k" * 1337, c_size_t(1337), b"", c_size_t(0)), "PK_TOO_LARGE")
    check(pk.pk_map_delete(txn, root, b"0007", c_size_t(4)))
    check(pk.pk_map_delete(txn, root, b"0007", c_size_t(4)), "PK_NOT_FOUND")
    del entries[b"0007"]
    buffer = ctypes.create_string_buffer(3)
    check(pk.pk_write_map_get(txn, root, b"0009", c_size_t(4), buffer, c_size_t(3), byref(size)))
    assert buffer.raw == b"vvv" and size.value == 63
    check(pk.pk_write_set_root(txn, root))
    check(pk.pk_write_commit(txn, 0, None))
    check(pk.pk_store_begin_read(handle, byref(snapshot)))
    check(pk.pk_map_get(snapshot, root, b"0007", c_size_t(4), buffer, c_size_t(3), None), "PK_NOT_FOUND")
    check(pk.pk_map_get(snapshot, root, b"0001", c_size_t(4), None, c_size_t(0), byref(size)))
    assert size.value == 7
    cursors = []
    for first, backwards in [(b"", 0), (b"0050", 0), (b"", 1), (b"0050", 1)]:
        cursors.append((first, backwards, c_void_p()))
        check(pk.pk_cursor_open(snapshot, root, first, c_size_t(len(first)), c_int(backwards), byref(cursors[-1][2])))
    check(pk.pk_cursor_open(snapshot, c_uint64(99), None, c_size_t(0), 0, byref(c_void_p())), "PK_MISUSE")
    check(pk.pk_map_get(snapshot, c_uint64(99), b"0007", c_size_t(4), buffer, c_size_t(3), None), "PK_MISUSE")
    # The cursors keep the entries that they read.
    pk.pk_read_end(snapshot)
    check(pk.pk_store_begin_write(handle, byref(txn)))
    check(pk.pk_map_drop(txn, root))
    check(pk.pk_write_commit(txn, 0, None))
    for first, backwards, cursor in cursors:
        key, value, key_size, value_size = c_void_p(), c_void_p(), c_size_t(), c_size_t()
        found = []
        while True:
            status = pk.pk_cursor_next(cursor, byref(key), byref(key_size), byref(value), byref(value_size))
            if names(status) == "PK_END":
                break
            check(status)
            found.append((ctypes.string_at(key, key_size.value), ctypes.string_at(value, value_size.value)))
        wanted = sorted(entries.items(), reverse=bool(backwards))
        if first:
            wanted = [(key, value) for key, value in wanted if (key <= first if backwards else key >= first)]
        assert found == wanted
        pk.pk_cursor_close(cursor)
    check(pk.pk_store_close(handle))


def next_key(cursor, wanted="PK_OK"):
    key, value, key_size, value_size = c_void_p(), c_void_p(), c_size_t(), c_size_t()
    check(pk.pk_cursor_next(cursor, byref(key), byref(key_size), byref(value), byref(value_size)), wanted)
    return ctypes.string_at(key, key_size.value) if wanted == "PK_OK" else None


def maps():
    handle, txn, snapshot, root, cursor, count = c_void_p(), c_void_p(), c_void_p(), c_uint64(), c_void_p(), c_uint64()
    check(pk.pk_store_open(path("maps"), None, byref(handle)))
    check(pk.pk_store_begin_write(handle, byref(txn)))
    check(pk.pk_write_map_open(txn, b"users", c_size_t(5), byref(root)))
    for key in [b"a", b"c", b"e", b"g"]:
        check(pk.pk_map_put(txn, root, key, c_size_t(1), key, c_size_t(1)))
    # A cursor of a transaction sees changes, and its end.
    check(pk.pk_write_cursor_open(txn, root, None, c_size_t(0), 0, byref(cursor)))
    assert next_key(cursor) == b"a"
    check(pk.pk_map_put(txn, root, b"b", c_size_t(1), b"", c_size_t(0)))
    check(pk.pk_map_delete(txn, root, b"c", c_size_t(1)))
    assert next_key(cursor) == b"b"
    check(pk.pk_cursor_set_end(cursor, b"g", c_size_t(1), 0))
    assert next_key(cursor) == b"e"
    next_key(cursor, "PK_END")
    check(pk.pk_cursor_seek(cursor, b"a", c_size_t(1)))
    assert next_key(cursor) == b"a"
    check(pk.pk_write_commit(txn, 0, None))
    next_key(cursor, "PK_MISUSE")
    pk.pk_cursor_close(cursor)
    check(pk.pk_store_begin_read(handle, byref(snapshot)))
    check(pk.pk_map_open(snapshot, b"none", c_size_t(4), byref(root)), "PK_NOT_FOUND")
    check(pk.pk_map_open(snapshot, b"users", c_size_t(5), byref(root)))
    check(pk.pk_map_check(snapshot, root, byref(count)))
    assert count.value == 4
    check(pk.pk_cursor_open(snapshot, root, None, c_size_t(0), 1, byref(cursor)))
    assert next_key(cursor) == b"g"
    # Entries that were read ahead obey a later end.
    check(pk.pk_cursor_set_end(cursor, b"b", c_size_t(1), 1))
    assert [next_key(cursor), next_key(cursor)] == [b"e", b"b"]
    next_key(cursor, "PK_END")
    pk.pk_cursor_close(cursor)
    pk.pk_read_end(snapshot)
    check(pk.pk_store_begin_write(handle, byref(txn)))
    check(pk.pk_write_map_drop(txn, b"users", c_size_t(5)))
    check(pk.pk_write_map_drop(txn, b"users", c_size_t(5)), "PK_NOT_FOUND")
    check(pk.pk_write_commit(txn, 0, None))
    check(pk.pk_store_close(handle))
    check(pk.pk_store_repair(path("maps"), path("maps repaired"), byref(count)))
    assert count.value == 0
    os.remove(os.path.join(DIRECTORY, "maps", "map"))
    check(pk.pk_store_open(path("maps"), None, byref(handle)), "PK_CORRUPT")
    check(pk.pk_store_repair(path("maps"), path("maps again"), byref(count)), "PK_CORRUPT")
    assert count.value > 0 and b"page map: missing" in pk.pk_error_message()


def stale():
    """The tests build the library with checks, so that a closed handle is refused."""
    handle, txn, snapshot, cache, page = c_void_p(), c_void_p(), c_void_p(), c_void_p(), c_uint64()
    check(pk.pk_store_open(path("stale"), None, byref(handle)))
    check(pk.pk_store_begin_write(handle, byref(txn)))
    check(pk.pk_write_commit(txn, 0, None))
    check(pk.pk_write_allocate(txn, byref(page)), "PK_MISUSE")
    assert b"closed before" in pk.pk_error_message()
    check(pk.pk_write_commit(txn, 0, None), "PK_MISUSE")
    pk.pk_write_abort(txn)
    check(pk.pk_store_begin_read(handle, byref(snapshot)))
    pk.pk_read_end(snapshot)
    check(pk.pk_read_get_root(snapshot, byref(page)), "PK_MISUSE")
    pk.pk_read_end(snapshot)
    check(pk.pk_store_close(handle))
    for status in [pk.pk_store_close(handle), pk.pk_store_sync(handle), pk.pk_store_begin_read(handle, byref(snapshot))]:
        check(status, "PK_MISUSE")
    check(pk.pk_cache_open(None, byref(cache)))
    pk.pk_cache_close(cache)
    check(pk.pk_file_open(cache, path("pages"), byref(c_void_p())), "PK_MISUSE")


def salvage():
    redo, reader, body, size = c_void_p(), c_void_p(), c_void_p(), c_size_t()
    options = structure("pk_redo_options")(files=1, file_bytes=1 << 20)
    check(pk.pk_redo_create(path("salvage"), byref(options), byref(redo)))
    for record in [b"one", b"two"]:
        check(pk.pk_redo_append(redo, record, c_size_t(3), None))
    check(pk.pk_redo_close(redo))
    with open(os.path.join(DIRECTORY, "salvage", "redo.000"), "r+b") as file:
        at = file.read().index(b"two")
        file.seek(at)
        file.write(b"rot")
    check(pk.pk_redo_salvage(path("salvage"), byref(reader)))
    check(pk.pk_redo_next(reader, byref(body), byref(size), None))
    assert ctypes.string_at(body, size.value) == b"one"
    check(pk.pk_redo_next(reader, byref(body), byref(size), None), "PK_CORRUPT")
    check(pk.pk_redo_next(reader, byref(body), byref(size), None), "PK_END")
    pk.pk_redo_reader_close(reader)


def pages():
    residency, released, kept = structure("pk_residency")(), c_uint64(), c_uint64()
    with open(path("pages"), "wb") as file:
        file.write(b"x" * (1 << 20))
    check(pk.pk_resident(path("pages"), c_uint64(0), c_uint64(2**64 - 1), byref(residency)))
    assert residency.resident_bytes == 1 << 20
    check(pk.pk_release(path("pages"), c_uint64(0), c_uint64(2**64 - 1), -1, byref(released), byref(kept)))
    assert (released.value, kept.value) == (1 << 20, 0)
    check(pk.pk_warm(path("pages"), c_uint64(0), c_uint64(2**64 - 1), None))
    check(pk.pk_resident(path("pages"), c_uint64(0), c_uint64(2**64 - 1), byref(residency)))
    assert residency.resident_bytes == 1 << 20
    check(pk.pk_resident(b"/dev/null", c_uint64(0), c_uint64(1), byref(residency)), "PK_MISUSE")


parts = [re.search(r"PK_VERSION_%s (\d+)" % part, open(HEADER).read()).group(1) for part in ["MAJOR", "MINOR", "PATCH"]]
assert pk.pk_version().decode() == ".".join(parts)
for part in [zeros, cache, owned, full, queue, bulk, redo, binlog, store, copies, tree, maps, stale, salvage, pages]:
    part()
    print(part.__name__)
