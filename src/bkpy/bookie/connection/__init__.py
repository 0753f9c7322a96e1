"""A bookie's connections: handshake, requests, appends, long polls."""
