# A client of MongoDB that reads commands line by line. "put NUMBER LENGTH" and that many bytes stores a
# document and is answered by "ok" once it is in the journal and synced; "get NUMBER" by "LENGTH" and that
# many bytes; "log LENGTH" has the server write about as much to its log, and is answered by "ok". The argument
# is the server's socket.
import sys

import pymongo

# The server writes little of one long text to its log.
COMMENT = ["x" * 100] * 80

client = pymongo.MongoClient(sys.argv[1], serverSelectionTimeoutMS=60_000)
acknowledged = pymongo.WriteConcern(w=1, j=True)
documents = client.load.get_collection("load", write_concern=acknowledged)
client.server_info()
out = sys.stdout.buffer
out.write(b"ready\n")
out.flush()
for line in sys.stdin.buffer:
    verb, number, *rest = line.split()
    if verb == b"put":
        value = sys.stdin.buffer.read(int(rest[0]))
        documents.insert_one({"_id": int(number), "value": value})
        out.write(b"ok\n")
    elif verb == b"log":
        # Each command is in the log, however fast it was; at most 10 kB of it.
        client.load.set_profiling_level(0, slow_ms=-1)
        for _ in range(int(number) // len("".join(COMMENT)) + 1):
            client.load.command("ping", comment=COMMENT)
        client.load.set_profiling_level(0, slow_ms=100)
        out.write(b"ok\n")
    else:
        value = documents.find_one({"_id": int(number)})["value"]
        out.write(b"%d\n" % len(value))
        out.write(value)
    out.flush()
