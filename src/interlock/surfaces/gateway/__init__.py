"""The WebSocket gateway: its connections, its methods, and the words in which it tells events and answers."""
