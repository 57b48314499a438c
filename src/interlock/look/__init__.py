"""The shell's commands on a store: `sessions`, `runs`, `show`, `prune`.

1. A look opens the database read-only, changes nothing and delays no server that is writing meanwhile.
2. States are told in the words of the lifecycle, endings in those of core/projection.
3. If no server has the directory, no run is told as running: a run without an ending is unsettled, and the next start
   settles it.
4. A look asks the kernel whether a server has the directory, by a shared lock that it holds for an instant. `prune`
   takes the lock without a boot: were it a start, its clean end would hide from the next start that the last server was
   killed.
"""

from interlock.look.commands import commands
from interlock.look.reading import in_use

__all__ = ["commands", "in_use"]
