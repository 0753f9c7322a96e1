"""The alarms, by a real Prometheus: each fires for what it is about, and clears."""
