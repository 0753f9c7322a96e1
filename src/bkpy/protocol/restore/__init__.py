"""The decisions of a cluster whose metadata were restored from a backup."""
