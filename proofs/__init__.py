"""Proofs of Interlock itself, not of anyone's agent: the store and recovery keep what was acknowledged."""
