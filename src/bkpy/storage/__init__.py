"""The storage engine of a bookie: journal, memtable, entry logs, index, and the checkpoints between them."""
