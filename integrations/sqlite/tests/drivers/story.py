"""What services in Python do with SQLite: story.py sqlite3|apsw LIBRARY DATABASE STEP. Prints answers and errors, one a line."""

import gc
import os
import signal
import sys
import threading

driver, library, database, step = sys.argv[1:]
LITERAL = ["literal.db?vfs=pagekeeper", "file:literal.db?vfs=pagekeeper"]
INSERT = "INSERT INTO t DEFAULT VALUES"

if driver == "sqlite3":
    import sqlite3

    loader = sqlite3.connect(":memory:")
    loader.enable_load_extension(True)
    loader.load_extension(library)

    def opened(timeout=60):
        return sqlite3.connect(f"file:{database}?vfs=pagekeeper", uri=True, timeout=timeout, isolation_level=None)

    literally = sqlite3.connect
else:
    import apsw

    loader = apsw.Connection(":memory:")
    # Newer versions have the second name alone.
    getattr(loader, "enableloadextension", getattr(loader, "enable_load_extension", None))(True)
    getattr(loader, "loadextension", getattr(loader, "load_extension", None))(library)

    def opened(timeout=60):
        connection = apsw.Connection(database, vfs="pagekeeper")
        getattr(connection, "setbusytimeout", getattr(connection, "set_busy_timeout", None))(timeout * 1000)
        return connection

    literally = apsw.Connection


def ask(connection, sql):
    return "|".join(str(column) for row in connection.execute(sql) for column in row)


def said(answer):
    try:
        print(answer(), flush=True)
    except Exception as error:
        print(error, flush=True)


def work(commits):
    connection = opened()
    for _ in range(commits):
        ask(connection, INSERT)
    connection.close()


def pool():
    threads = [threading.Thread(target=work, args=[25]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def forked(work):
    child = os.fork()
    if child == 0:
        work()
        sys.exit()
    return child


def fork():
    first = opened()
    ask(first, INSERT)

    def child():
        said(lambda: ask(first, "SELECT count(*) FROM t"))
        said(lambda: ask(opened(0), "SELECT count(*) FROM t"))

    os.waitpid(forked(child), 0)
    ask(first, INSERT)
    first.close()
    for worker in [forked(lambda: work(1)) for _ in range(4)]:
        print(f"ended {os.waitpid(worker, 0)[1]}")


def kill():
    connection = opened()
    for statement in [INSERT, "BEGIN", INSERT]:
        ask(connection, statement)
    os.kill(os.getpid(), signal.SIGKILL)


def collect():
    cycle = [opened()]
    cycle.append(cycle)
    ask(cycle[0], "CREATE TABLE t(a)")
    other = literally(database)
    ask(other, "PRAGMA busy_timeout=0")
    said(lambda: ask(other, "SELECT count(*) FROM t"))
    del cycle
    gc.collect()
    said(lambda: ask(other, "SELECT count(*) FROM t"))


def load():
    connection = opened()
    ask(connection, "CREATE TABLE t(a INTEGER PRIMARY KEY)")
    return ask(connection, "PRAGMA pagekeeper")


if step == "load":
    said(load)
elif step == "literal":
    for name in LITERAL:
        said(lambda: ask(literally(name), "PRAGMA pagekeeper"))
elif step == "wal":
    said(lambda: ask(opened(), "PRAGMA journal_mode=WAL"))
elif step == "check":
    said(lambda: ask(opened(), "SELECT (SELECT count(*) FROM t), integrity_check FROM pragma_integrity_check"))
else:
    {"pool": pool, "fork": fork, "kill": kill, "collect": collect}[step]()
