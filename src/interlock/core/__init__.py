"""The rules, as pure functions and tables: no clock, I/O, randomness, event loop or log."""
