"""The index: where the entries of ledgers are, and how sets of their ids are stored."""
