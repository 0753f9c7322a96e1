"""The version of this code: told here alone. What is built from it takes it from here."""

VERSION = "0.2.0"
