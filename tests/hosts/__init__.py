"""Hosts as real processes: agents that misbehave, and deaths from outside."""
