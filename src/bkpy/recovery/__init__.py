"""Recovery of ledgers whose writers are gone."""
