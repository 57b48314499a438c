"""Starts a run's processes in a containment, ends them, and sees that they are gone."""
