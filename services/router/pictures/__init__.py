"""Files that clients upload, and what is told about known pictures."""
