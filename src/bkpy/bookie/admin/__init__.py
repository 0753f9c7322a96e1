"""A bookie's HTTP pages: metrics, status and commands."""
