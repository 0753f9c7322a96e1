"""Named logs: the list of their ledgers, and decisions on opening, reading, retention and sinks."""
