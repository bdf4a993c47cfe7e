"""From the command line and conf/ to jobs and their cells. Nothing here imports torch."""
