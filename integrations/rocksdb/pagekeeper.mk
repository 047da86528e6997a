# For RocksDB's own build, with this directory as plugin/pagekeeper in its source: make
# ROCKSDB_PLUGINS=pagekeeper. libpagekeeper is found by pkg-config (make install-capi). RocksDB's CMake also
# reads the sources and the function from here, so each must be on one line.

pagekeeper_SOURCES = builtin.cc info_logs.cc log_writer.cc pagekeeper_fs.cc register.cc table_reader.cc table_writer.cc
pagekeeper_HEADERS =
pagekeeper_FUNC = register_pagekeeper
pagekeeper_PKGCONFIG_REQUIRES = "pagekeeper"
