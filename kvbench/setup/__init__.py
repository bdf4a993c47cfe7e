"""What a run needs and how it is brought: checks before anything is loaded, downloads."""
