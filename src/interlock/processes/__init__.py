"""Owns every process of a run: contains it before it executes, ends it, and sees that it is gone."""
