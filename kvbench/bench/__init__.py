"""Measurements of speed, each a module with a `rows()` function."""
