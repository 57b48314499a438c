"""`interlock probe URL`: a stop campaign against any gateway that speaks the published protocol, ours or another's.

1. A probe uses only published methods and events, so every client of that gateway can see what a probe finds.
2. A scene that was not brought to its point (the agent said nothing, no tool began) counts as not tried, never as
   passed.
3. Frames are judged in their order on one connection: a frame behind an answer was sent after it.
4. A probe works in sessions of its own and stops what it started there, also when it is interrupted.
"""
