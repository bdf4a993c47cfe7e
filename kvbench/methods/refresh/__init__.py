"""Refresh policies: which prefix entries a decode step re-selects, and when."""
