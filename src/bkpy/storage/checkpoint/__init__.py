"""Makes what is in memory durable in entry logs and index, so that the journal may go."""
