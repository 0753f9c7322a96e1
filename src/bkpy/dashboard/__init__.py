"""A page that shows a cluster, and the JSON under it: read-only unless actions are allowed."""
