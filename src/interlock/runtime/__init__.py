"""Makes the rules happen in one process: every message in, every effect out, every ending."""
