"""Under-replicated ledgers, locks, the election of the auditor, and records of audits and workers."""
