"""The exit statuses of commands that a signal or their reader has ended, as shells know them."""

INTERRUPTED = 128 + 2  # SIGINT
OUTPUT_CLOSED = 128 + 13  # SIGPIPE
TERMINATED = 128 + 15  # SIGTERM
