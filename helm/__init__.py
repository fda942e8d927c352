"""The chart, and what writes its generated files."""
