"""Measurements and tables that the documentation quotes."""
