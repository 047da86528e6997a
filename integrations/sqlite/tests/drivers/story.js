// Uses SQLite as a Node service does: story.js better-sqlite3|node:sqlite LIBRARY DATABASE STEP. Prints answers and errors, one per line.
"use strict";
const fs = require("fs");
const { Worker, isMainThread, workerData } = require("worker_threads");

const [driver, library, database, step] = isMainThread ? process.argv.slice(2) : workerData;
const LITERAL = ["literal.db?vfs=pagekeeper", "file:literal.db?vfs=pagekeeper"];
const INSERT = "INSERT INTO t DEFAULT VALUES";
const WAIT = 60000;

let opened, literally;
if (driver === "node:sqlite") {
  const { DatabaseSync } = require(driver);
  if (isMainThread) new DatabaseSync(":memory:", { allowExtension: true }).loadExtension(library);
  opened = (timeout = WAIT) => new DatabaseSync(`file:${database}?vfs=pagekeeper`, { timeout });
  literally = (name) => new DatabaseSync(name);
} else {
  const Database = require(driver);
  // It takes no URIs: the VFS has to be the default one.
  const entry = step === "literal" ? "sqlite3_extension_init" : "sqlite3_pagekeeper_default_init";
  if (isMainThread) new Database(":memory:").loadExtension(library, entry);
  opened = (timeout = WAIT) => new Database(database, { timeout });
  literally = (name) => new Database(name);
}

const ask = (connection, sql) => Object.values(connection.prepare(sql).get() ?? {}).join("|");
const said = (answer) => {
  try {
    console.log(answer());
  } catch (error) {
    console.log(error.message);
  }
};

const steps = {
  load: () => said(() => {
    const connection = opened();
    connection.exec("CREATE TABLE t(a INTEGER PRIMARY KEY)");
    return ask(connection, "PRAGMA pagekeeper");
  }),
  literal: () => LITERAL.forEach((name) => said(() => ask(literally(name), "PRAGMA pagekeeper"))),
  pool: () => {
    if (isMainThread) {
      for (let nth = 0; nth < 4; nth++) new Worker(__filename, { workerData: [driver, library, database, step] });
      return;
    }
    const connection = opened();
    for (let nth = 0; nth < 25; nth++) connection.exec(INSERT);
    connection.close();
  },
  wal: () => said(() => ask(opened(), "PRAGMA journal_mode=WAL")),
  hold: () => {
    const connection = opened();
    connection.exec(INSERT);
    console.log("ready");
    fs.readSync(0, Buffer.alloc(1));
    connection.exec(INSERT);
  },
  locked: () => said(() => ask(opened(0), "SELECT count(*) FROM t")),
  kill: () => {
    opened().exec(`${INSERT}; BEGIN; ${INSERT}`);
    process.kill(process.pid, "SIGKILL");
  },
  collect: async () => {
    const words = [...process.execArgv, __filename, driver, library, database, "locked"];
    const others = () => require("child_process").execFileSync(process.execPath, words).toString().trim();
    (() => {
      opened().exec("CREATE TABLE t(a)");
    })();
    said(others);
    for (let nth = 0; nth < 10; nth++) {
      gc();
      await new Promise(setImmediate);
    }
    said(others);
  },
  check: () => said(() => ask(opened(), "SELECT (SELECT count(*) FROM t), integrity_check FROM pragma_integrity_check")),
};
steps[step]();
