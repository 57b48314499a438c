"""Figures, each a ratio against a denominator taken in the same run. `python -m bench` prints the table."""
