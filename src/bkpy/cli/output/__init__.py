"""How commands print: JSON, tables, entries, progress, lines for people, errors."""
