/*
 * WiredTiger with a journal as MongoDB sets it up: `engine DIRECTORY ROWS fill` makes a table of that many values,
 * `engine DIRECTORY ROWS` opens it and answers each line with a number by "done" once so many random rows are updated
 * and the journal is synced.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <wiredtiger.h>

#define VALUE_BYTES 1000

static void must(int failed, const char *what)
{
    if (failed != 0) {
        fprintf(stderr, "%s: %s\n", what, wiredtiger_strerror(failed));
        exit(1);
    }
}

static uint64_t random_number(void)
{
    static uint64_t state;
    if (state == 0)
        state = (uint64_t)time(NULL) | 1;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static void put(WT_CURSOR *cursor, uint64_t row)
{
    uint64_t bytes[VALUE_BYTES / 8];
    WT_ITEM value = {bytes, sizeof(bytes)};
    for (size_t at = 0; at < VALUE_BYTES / 8; at++)
        bytes[at] = random_number();
    cursor->set_key(cursor, row);
    cursor->set_value(cursor, &value);
    must(cursor->insert(cursor), "insert");
}

int main(int argc, char **argv)
{
    WT_CONNECTION *connection;
    WT_SESSION *session;
    WT_CURSOR *cursor;
    int fill = argc == 4;
    char line[64];

    if (argc < 3)
        return 2;
    uint64_t rows = strtoull(argv[2], NULL, 10);
    must(wiredtiger_open(argv[1], NULL,
                         "create,cache_size=512M,transaction_sync=(enabled=false),"
                         "log=(enabled=true,archive=true,path=journal,file_max=100MB)",
                         &connection),
         "open");
    must(connection->open_session(connection, NULL, NULL, &session), "open a session");
    must(session->create(session, "table:load", "key_format=Q,value_format=u"), "create a table");
    must(session->open_cursor(session, "table:load", NULL, fill ? "bulk" : NULL, &cursor), "open a cursor");
    if (fill) {
        for (uint64_t row = 1; row <= rows; row++)
            put(cursor, row);
        must(connection->close(connection, NULL), "close");
        return 0;
    }
    while (fgets(line, sizeof(line), stdin) != NULL) {
        for (uint64_t left = strtoull(line, NULL, 10); left > 0; left--)
            put(cursor, 1 + random_number() % rows);
        must(session->log_flush(session, "sync=on"), "sync");
        printf("done\n");
        fflush(stdout);
    }
    return 0;
}
