"""From jobs to stored answers: loading, asking, tries, launchers, Slurm, tracking."""
