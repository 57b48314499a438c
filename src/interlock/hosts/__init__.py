"""Runs each session's agent in a process of its own, so that no agent can delay a stop."""
