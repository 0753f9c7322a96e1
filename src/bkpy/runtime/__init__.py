"""The seam to the outside: what it looks like, and the real thing behind it."""
