"""The metadata store and what is kept in it: ledgers, registrations, cookies and the cluster itself."""
