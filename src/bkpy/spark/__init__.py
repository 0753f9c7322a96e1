"""Ledgers in Apache Spark: the data source `bkpy`, a quiet local session, and the export to files."""
