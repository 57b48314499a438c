"""The gateway and the page: requests into calls of control, events into messages."""
