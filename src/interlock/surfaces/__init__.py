"""Surfaces: the ways in over a network, today the gateway and the page.

A surface speaks to a `Client`: requests become verbs, and a sink of the surface's own puts events into an outbox.
Another surface (server-sent events, a messenger's channel) is a module or room beside gateway/; what people type there
is read by client/chat.py. gateway/gateway.py lists the HTTP routes of every surface.
"""
