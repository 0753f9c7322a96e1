"""The version of this code, in one place. The build reads it from here."""

VERSION = "0.2.0"
