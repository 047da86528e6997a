# `make` lists what can be made. Every target does its own set-up; PREFIX, DESTDIR, ARGS and CARGO may be given.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

CARGO ?= cargo
PREFIX ?= /usr/local
DESTDIR ?=
ARGS ?=
TARGET := $(or $(CARGO_TARGET_DIR),target)
# Peers that benchmarks are built with; RocksDB where its headers are.
BENCH_FEATURES := fjall lmdb raft-engine redb sqlite $(if $(wildcard /usr/include/rocksdb/cache.h),rocksdb)

export CARGO PREFIX DESTDIR

.PHONY: help demo check test test-all test-stories test-hostile test-kills test-faults test-sqlite test-valgrind test-crates test-mysql test-advice test-databases test-preload test-shim test-torture test-cgroup-v2 test-helm test-kernels test-rocksdb-stress build capi packages test-packages install-capi rocksdb-plugin sqlite-plugin install-sqlite install api semver lint fmt sanitize fuzz cross deny docs pictures bench bench-setup

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-19s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: build ## a small built-in engine: alone, under the guard, and with logs that release by themselves; a store that is killed (ARGS="--duration 12s")
	@exec "$(TARGET)/release/pagekeeper" demo $(ARGS)

check: ## before each commit: formatting, clippy, unit tests and doc tests, without root and without packages
	@scripts/check.sh

test: ## all checks and the tests, real databases included; as root it installs what they need
	@scripts/keep-idle-pages.sh scripts/test.sh

test-all: ## every test that `make test` leaves out, in parts, as root (ARGS="kernels faults"); hours
	@scripts/test-all.sh $(ARGS)

test-stories: ## the stories of users that take long, beside real servers and programs, as root (ARGS="databases host")
	@scripts/keep-idle-pages.sh scripts/test-stories.sh $(ARGS)

test-kills: ## kills of processes that commit to a page store, on XFS over a slow disk, as root
	@scripts/keep-idle-pages.sh scripts/test-kills.sh

test-faults: ## power cuts, failing and lying disks under store, logs and SQLite, a second reader after kills, as root (CYCLES=500)
	@scripts/keep-idle-pages.sh scripts/test-faults.sh

test-valgrind: ## programs in C and C++ on the library under valgrind: memory errors, leaks, wrong use of pthread locks
	@scripts/packages.sh "memory errors and wrong use of locks: valgrind pkg-config gcc g++"
	@PAGEKEEPER_REQUIRE_ALL=1 $(CARGO) test --package pagekeeper-capi --test programs -- --ignored valgrind

test-crates: ## the crates as they would be published: installed and used from their packages; the oldest compiler
	@scripts/test-crates.sh

test-sqlite: ## SQLite's own tests with the VFS as its default, and drivers of other languages on it; fetches these and Debian's source into the target directory (ARGS="TEST ...")
	@scripts/test-sqlite.sh $(ARGS)

test-mysql: ## the guard beside MySQL 8.0, 8.4 and 9, fetched into the target directory (ARGS=8.4)
	@scripts/keep-idle-pages.sh scripts/test-mysql.sh $(ARGS)

test-advice: ## the doctor's advice on each version of each server that registries have, fetched into the target directory
	@scripts/keep-idle-pages.sh scripts/test-advice.sh

test-databases: ## the guard beside each server that has a profile, but ScyllaDB and TiKV: Debian's, and Kafka, Cassandra, OpenSearch, Elasticsearch, MongoDB and MySQL, and newer versions of six of Debian's, fetched into the target directory
	@scripts/keep-idle-pages.sh scripts/test-databases.sh

test-hostile: ## ten minutes of a hostile user beside real databases, as root (ARGS=SECONDS)
	@scripts/keep-idle-pages.sh scripts/test-hostile.sh $(ARGS)

test-preload: ## programs under pagekeeper run: all calls, torture, faults, real programs at length, MariaDB's own tests
	@scripts/keep-idle-pages.sh scripts/test-preload.sh

test-shim: test-preload

test-torture: ## ten minutes of real tools at random under pagekeeper run beside busy loops, as root (ARGS=SECONDS)
	@scripts/keep-idle-pages.sh scripts/test-torture.sh $(ARGS)

test-cgroup-v2: ## memory cgroups of version 2, in virtual machines with Debian's kernel: the guard's, its service under systemd, containers (ARGS=guard, unit or containers)
	@scripts/test-cgroup-v2.sh $(ARGS)

test-helm: ## the Helm chart: linted, rendered as the manifest is, validated against Kubernetes' schemas; builds Helm (needs Go)
	@scripts/test-helm.sh

test-kernels: ## the kernels of Debian and Ubuntu, in virtual machines (ARGS="SUITE[:FLAVOUR] ..."); writes docs/src/kernels.md
	@scripts/test-kernels.sh $(ARGS)

test-rocksdb-stress: ## RocksDB's own crash test on pagekeeper's file system, ten minutes (ARGS="SOURCE [SECONDS]": RocksDB's source, of the installed version)
	@scripts/keep-idle-pages.sh scripts/test-rocksdb-stress.sh $(ARGS)

build: ## the release binary
	@scripts/require-rust.sh
	@$(CARGO) build --release --package pagekeeper

capi: ## the C library, into target/capi: headers, shared and static library, pkg-config, CMake
	@scripts/build-capi.sh "$(TARGET)/capi"

rocksdb-plugin: ## a file system for the installed RocksDB, into target/rocksdb (needs librocksdb-dev)
	@scripts/build-rocksdb.sh "$(TARGET)/rocksdb"

sqlite-plugin: ## a VFS for SQLite, into target/sqlite: commits by one sync of a log
	@scripts/build-sqlite.sh "$(TARGET)/sqlite"

install-sqlite: ## the same, into lib/pagekeeper (PREFIX=/usr/local, DESTDIR=)
	@scripts/build-sqlite.sh "$(DESTDIR)$(PREFIX)/lib/pagekeeper"

install-capi: ## the C library (PREFIX=/usr/local, DESTDIR=)
	@scripts/build-capi.sh "$(DESTDIR)$(PREFIX)"

packages: ## deb, rpm, static program, wheel, npm package, libraries, container image, Helm chart, SBOM, checksums, for x86-64 and aarch64, into target/packages (ARGS=amd64)
	@scripts/build-packages.sh $(ARGS)

test-packages: ## those built twice to the same bytes; deb and rpm installed, upgraded and purged in a clean Debian, wheel and npm package installed, the others run, as root
	@scripts/test-packages.sh $(ARGS)

install: ## binary, man pages, completions and systemd unit (PREFIX=/usr/local, DESTDIR=)
	@scripts/install.sh

api: ## the lists of what the crates for engines offer, crates/*/*/api.txt (ARGS=--check compares)
	@scripts/api.sh $(ARGS)

semver: ## what those crates offer beside the last release, by cargo-semver-checks (ARGS=COMMIT)
	@scripts/semver.sh $(ARGS)

lint: ## rustfmt, clippy and rustdoc, warnings are errors
	@scripts/require-rust.sh
	@scripts/lint.sh

fmt: ## format the source
	@scripts/require-rust.sh
	@$(CARGO) fmt --all

sanitize: ## threads and unsafe code under sanitizers and Miri (ARGS="ROUNDS PART"); needs a nightly compiler
	@scripts/sanitize.sh $(ARGS)

fuzz: ## a parser on random input (ARGS="snapshot 60", seconds); needs a nightly compiler and cargo-fuzz
	@scripts/fuzz.sh $(ARGS)

cross: ## the preloaded library for x86-64 and aarch64: what it needs of a C library, exports, and could panic by
	@scripts/cross.sh

deny: ## licences, sources and advisories of all dependencies
	@scripts/deny.sh

docs: ## the book, into target/book, with all links checked; fetches mdbook if it is missing
	@scripts/require-rust.sh
	@scripts/docs.sh

pictures: build ## the book's pictures, from real runs, as root, on a machine at rest (ARGS="crates log mariadb beside size restart")
	@scripts/pictures/make.py "$(TARGET)/release/pagekeeper" docs/src/pictures $(ARGS)

bench: build ## a benchmark (ARGS="release --json"), after `make bench-setup`
	@scripts/require-rust.sh
	@$(CARGO) build --release --package pagekeeper-bench --features "$(BENCH_FEATURES)"
	@PATH="$(abspath $(TARGET))/peers/bin:$$PATH" scripts/keep-idle-pages.sh "$(TARGET)/release/pagekeeper-bench" $(ARGS)

bench-setup: ## the peers that benchmarks compare with: vmtouch, fincore, fio, sysbench, pagers, RocksDB; and the servers that Debian has
	@scripts/bench-setup.sh
