/*
 * RocksDB with its own defaults, driven line by line. "put NUMBER LENGTH" and that many bytes stores a value and is
 * answered by "ok" once it is in the WAL and synced; "get NUMBER" by "LENGTH" and that many bytes.
 *
 * The length of each value goes into a second column family. It hardly grows, so it is rarely flushed, and no WAL is
 * removed before that: with its defaults, RocksDB 7.8.3 accumulated 1.5 GiB of WAL.
 */
#include <rocksdb/c.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void must(char *failed, const char *what)
{
    if (failed != NULL) {
        fprintf(stderr, "%s: %s\n", what, failed);
        exit(1);
    }
}

/* Ends the input: the next read, or the interrupted one, finds no more lines. */
static void stop(int signal)
{
    (void)signal;
    close(STDIN_FILENO);
}

int main(int argc, char **argv)
{
    const char *const names[] = {"default", "lengths"};
    rocksdb_column_family_handle_t *families[2];
    struct sigaction action = {.sa_handler = stop};
    char *failed = NULL, line[64], key[32];
    unsigned long long number;
    size_t length;

    if (argc != 2 || sigaction(SIGTERM, &action, NULL) != 0)
        return 2;
    rocksdb_options_t *options = rocksdb_options_create();
    rocksdb_options_set_create_if_missing(options, 1);
    rocksdb_options_set_create_missing_column_families(options, 1);
    const rocksdb_options_t *const of_each[] = {options, options};
    rocksdb_t *database = rocksdb_open_column_families(options, argv[1], 2, names, of_each, families, &failed);
    must(failed, "open");
    rocksdb_readoptions_t *reads = rocksdb_readoptions_create();
    rocksdb_writeoptions_t *writes = rocksdb_writeoptions_create();
    rocksdb_writeoptions_set_sync(writes, 1);
    rocksdb_writebatch_t *batch = rocksdb_writebatch_create();
    printf("ready\n");
    fflush(stdout);
    while (fgets(line, sizeof(line), stdin) != NULL) {
        if (sscanf(line, "put %llu %zu", &number, &length) == 2) {
            char *bytes = malloc(length);
            if (bytes == NULL || fread(bytes, 1, length, stdin) != length)
                return 1;
            int digits = snprintf(key, sizeof(key), "%020llu", number);
            rocksdb_writebatch_clear(batch);
            rocksdb_writebatch_put_cf(batch, families[0], key, digits, bytes, length);
            rocksdb_writebatch_put_cf(batch, families[1], key, digits, (const char *)&length, sizeof(length));
            rocksdb_write(database, writes, batch, &failed);
            must(failed, "write");
            free(bytes);
            printf("ok\n");
        } else if (sscanf(line, "get %llu", &number) == 1) {
            size_t size;
            int digits = snprintf(key, sizeof(key), "%020llu", number);
            char *bytes = rocksdb_get_cf(database, reads, families[0], key, digits, &length, &failed);
            must(failed, "get");
            char *noted = rocksdb_get_cf(database, reads, families[1], key, digits, &size, &failed);
            must(failed, "get its length");
            if (bytes == NULL || noted == NULL || size != sizeof(length) || memcmp(noted, &length, size) != 0) {
                fprintf(stderr, "value %llu: missing, or not as long as it was\n", number);
                return 1;
            }
            printf("%zu\n", length);
            fwrite(bytes, 1, length, stdout);
            rocksdb_free(bytes);
            rocksdb_free(noted);
        } else {
            return 2;
        }
        fflush(stdout);
    }
    rocksdb_writebatch_destroy(batch);
    rocksdb_writeoptions_destroy(writes);
    rocksdb_readoptions_destroy(reads);
    rocksdb_column_family_handle_destroy(families[0]);
    rocksdb_column_family_handle_destroy(families[1]);
    rocksdb_close(database);
    rocksdb_options_destroy(options);
    return 0;
}
