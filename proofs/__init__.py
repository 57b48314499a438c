"""Proofs of what is ours alone, not of anyone's agent: that the store and recovery keep what was acknowledged."""
