"""The memtable: entries that only the journal holds durably, in memory for reads and flushes."""
