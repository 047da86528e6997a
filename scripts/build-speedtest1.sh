#!/usr/bin/env bash
# SQLite's own speedtest1, in a directory, as a program that makes pagekeeper's VFS the default one where the variable VFS names the library.
# `build-speedtest1.sh DIRECTORY`. The source is fetched into the target directory; it is linked with the installed libsqlite3.
set -euo pipefail
cd "$(dirname "$0")/.."
to=${1:?a directory to build it in}

scripts/packages.sh "speedtest1: gcc dpkg-dev libsqlite3-dev"
source=$(scripts/fetch-sqlite.sh)
scripts/build-sqlite.sh "$to"

# It has no option to load a library: its main() is called by one that does, so that it opens its database as it always does.
cat >"$to/speedtest1-main.c" <<'C'
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>

int speedtest1(int argc, char **argv);

int main(int argc, char **argv) {
  const char *library = getenv("VFS");
  sqlite3 *loader = NULL;
  char *why = NULL;
  if (library != NULL) {
    if (sqlite3_open(":memory:", &loader) != SQLITE_OK ||
        sqlite3_db_config(loader, SQLITE_DBCONFIG_ENABLE_LOAD_EXTENSION, 1, NULL) != SQLITE_OK ||
        sqlite3_load_extension(loader, library, "sqlite3_pagekeeper_default_init", &why) != SQLITE_OK) {
      fprintf(stderr, "%s can't be loaded: %s\n", library, why != NULL ? why : "SQLite says no");
      return 2;
    }
    sqlite3_close(loader);
  }
  return speedtest1(argc, argv);
}
C
gcc -O2 -Dmain=speedtest1 -c "$source/test/speedtest1.c" -o "$to/speedtest1.o"
gcc -O2 -o "$to/speedtest1" "$to/speedtest1-main.c" "$to/speedtest1.o" -lsqlite3 -lm
