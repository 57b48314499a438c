"""The scheduler: sessions, runs, tools, and how each run ends."""
