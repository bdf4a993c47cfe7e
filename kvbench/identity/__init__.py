"""What stands behind a name, and what made an answer: digests, revisions, provenance."""
