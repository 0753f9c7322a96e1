"""The client: `client.py` assembles it of `bookies/`, `write/` and `read/`; `close.py` closes ledgers."""
