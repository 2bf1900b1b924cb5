"""Speed of whale against the usual ways, on the rows and prompts of a finished run. See docs/benchmark.md."""
