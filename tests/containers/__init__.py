"""Whole containers, on a Docker daemon that the tests start for themselves."""
