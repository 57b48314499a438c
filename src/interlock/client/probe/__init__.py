"""`interlock probe URL`: a stop campaign against any gateway that speaks the published protocol, ours or another's.

1. Only published methods and events are used: what is found here, every client of that gateway can see.
2. A scene whose premise never came about (nothing was said, no tool began) was not tried; it never counts as passed.
3. Frames are judged in the order they came on one connection: what stands behind an answer was sent behind it.
4. Whatever a probe started it stops again, in sessions that nobody else has, also when it is interrupted.
"""

from interlock.client.probe.commands import BAD_USAGE, commands

__all__ = ["BAD_USAGE", "commands"]
