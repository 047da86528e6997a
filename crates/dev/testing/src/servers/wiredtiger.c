/*
 * WiredTiger with a journal as MongoDB sets it up, driven line by line. "put NUMBER LENGTH" and that many bytes stores
 * a value and is answered by "ok" once it is in the journal and synced; "get NUMBER" by "LENGTH" and that many bytes.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <wiredtiger.h>

static void must(int failed, const char *what)
{
    if (failed != 0) {
        fprintf(stderr, "%s: %s\n", what, wiredtiger_strerror(failed));
        exit(1);
    }
}

int main(int argc, char **argv)
{
    WT_CONNECTION *connection;
    WT_SESSION *session;
    WT_CURSOR *cursor;
    WT_ITEM value;
    unsigned long long number;
    size_t length;
    char line[64];

    if (argc != 2)
        return 2;
    must(wiredtiger_open(argv[1], NULL,
                         "create,cache_size=512M,transaction_sync=(enabled=true,method=fsync),"
                         "log=(enabled=true,archive=true,path=journal,file_max=100MB),checkpoint=(wait=600)",
                         &connection),
         "open");
    must(connection->open_session(connection, NULL, NULL, &session), "open a session");
    must(session->create(session, "table:load", "key_format=Q,value_format=u"), "create a table");
    must(session->open_cursor(session, "table:load", NULL, NULL, &cursor), "open a cursor");
    printf("ready\n");
    fflush(stdout);
    while (fgets(line, sizeof(line), stdin) != NULL) {
        if (sscanf(line, "put %llu %zu", &number, &length) == 2) {
            char *bytes = malloc(length);
            if (bytes == NULL || fread(bytes, 1, length, stdin) != length)
                return 1;
            value.data = bytes;
            value.size = length;
            cursor->set_key(cursor, (uint64_t)number);
            cursor->set_value(cursor, &value);
            must(cursor->insert(cursor), "insert");
            free(bytes);
            printf("ok\n");
        } else if (sscanf(line, "get %llu", &number) == 1) {
            cursor->set_key(cursor, (uint64_t)number);
            must(cursor->search(cursor), "search");
            must(cursor->get_value(cursor, &value), "get");
            printf("%zu\n", value.size);
            fwrite(value.data, 1, value.size, stdout);
            must(cursor->reset(cursor), "reset");
        } else {
            return 2;
        }
        fflush(stdout);
    }
    return 0;
}
