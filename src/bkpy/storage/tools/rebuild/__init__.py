"""A new index for a ledger directory whose own is damaged or gone."""
