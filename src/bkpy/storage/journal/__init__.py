"""What makes an entry durable before it is acknowledged: written in groups, replayed at the start."""
