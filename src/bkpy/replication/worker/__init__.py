"""The worker: copies the missing replicas of under-replicated ledgers."""
