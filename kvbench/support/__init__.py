"""Small helpers that know nothing of models or methods."""
