"""The page, read by a real Chromium."""
