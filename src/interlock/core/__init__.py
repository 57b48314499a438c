"""The rules, as tables and values: pure, without a clock, I/O, randomness, a loop or a log."""
