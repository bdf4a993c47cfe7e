"""kvbench."""
