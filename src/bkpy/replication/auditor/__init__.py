"""The auditor: finds lost bookies and damaged replicas, and queues under-replicated ledgers."""
