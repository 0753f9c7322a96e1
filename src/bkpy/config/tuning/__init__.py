"""Tuning: internal numbers. Users don't set them; the simulator varies all of them.

A bound, a pause or a batch size belongs here if one value suits every cluster. The settings inherit from these classes:
code reads a tuning value as `settings.NAME`, and tests set it by keyword.
"""
