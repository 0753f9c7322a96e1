"""Looks into a bookie's files without changing them, past whatever is damaged, whether the bookie runs or not."""
