"""How commands print: tables, units, progress, exit statuses."""
