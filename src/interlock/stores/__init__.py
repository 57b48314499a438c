"""Remembers: a port, its twin in memory, and SQLite in a directory."""
