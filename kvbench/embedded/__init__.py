"""The embedded vision-language model: pages, eyes, weights and the five mini benchmarks."""
