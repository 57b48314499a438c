"""The surfaces: words into control calls, outcomes into words."""
