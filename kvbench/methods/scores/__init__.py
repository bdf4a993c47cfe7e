"""Scores: which candidates of a head matter most."""
