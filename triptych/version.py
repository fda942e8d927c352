"""The version of Triptych, in one place."""

VERSION = "0.1.0"
