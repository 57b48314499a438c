"""Stores sessions, runs and events: the interface, a store in memory, and SQLite."""
