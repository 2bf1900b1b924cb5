"""whale-learn: one training run that alternates weight updates and harness search. Importing it loads no torch."""

__version__ = "0.1.0"
