// What services in Go do with SQLite: story LIBRARY DATABASE STEP. Prints answers and errors, one a line.
package main

import (
	"database/sql"
	"fmt"
	"os"
	"sync"
	"syscall"

	"github.com/mattn/go-sqlite3"
)

const insert = "INSERT INTO t DEFAULT VALUES"

func must(err error) {
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

func opened(parameters string) *sql.DB {
	db, err := sql.Open("loads", "file:"+os.Args[2]+"?vfs=pagekeeper"+parameters)
	must(err)
	return db
}

func ask(db *sql.DB, query string) {
	var answer string
	if err := db.QueryRow(query).Scan(&answer); err != nil {
		answer = err.Error()
	}
	fmt.Println(answer)
}

func run(db *sql.DB, statement string) {
	_, err := db.Exec(statement)
	must(err)
}

func pool() {
	db := opened("&_busy_timeout=60000")
	db.SetMaxOpenConns(4)
	var workers sync.WaitGroup
	for nth := 0; nth < 4; nth++ {
		workers.Add(1)
		go func() {
			defer workers.Done()
			for commit := 0; commit < 25; commit++ {
				run(db, insert)
			}
		}()
	}
	workers.Wait()
	must(db.Close())
}

func main() {
	// Loaded by each connection; the first one is not by the VFS, which it makes known.
	sql.Register("loads", &sqlite3.SQLiteDriver{Extensions: []string{os.Args[1]}})
	loader, err := sql.Open("loads", ":memory:")
	must(err)
	must(loader.Ping())
	switch os.Args[3] {
	case "load":
		db := opened("")
		run(db, "CREATE TABLE t(a INTEGER PRIMARY KEY)")
		ask(db, "PRAGMA pagekeeper")
		must(db.Close())
	case "literal":
		for _, name := range []string{"literal.db?vfs=pagekeeper", "file:literal.db?vfs=pagekeeper"} {
			db, err := sql.Open("loads", name)
			must(err)
			ask(db, "PRAGMA pagekeeper")
		}
	case "pool":
		pool()
	case "wal":
		ask(opened("&_journal_mode=WAL"), "PRAGMA journal_mode")
	case "hold":
		db := opened("")
		run(db, insert)
		fmt.Println("ready")
		_, _ = os.Stdin.Read(make([]byte, 1))
		run(db, insert)
		must(db.Close())
	case "locked":
		ask(opened("&_busy_timeout=0"), "SELECT count(*) FROM t")
	case "kill":
		db := opened("")
		run(db, insert)
		transaction, err := db.Begin()
		must(err)
		_, err = transaction.Exec(insert)
		must(err)
		must(syscall.Kill(os.Getpid(), syscall.SIGKILL))
	case "check":
		ask(opened(""), "SELECT (SELECT count(*) FROM t) || '|' || integrity_check FROM pragma_integrity_check")
	}
}
