"""Runs agent code in processes of its own, so that no agent can delay a stop."""
