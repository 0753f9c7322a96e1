"""The lists of named logs, their consumers, deletion and retention."""
