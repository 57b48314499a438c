"""Looking into a store's directory from the shell: `sessions`, `runs`, `show`; and `prune`.

1. Looking changes nothing and keeps nobody waiting; a server may be writing meanwhile.
2. States are told in the words of the lifecycle, endings in those of core/projection.
3. Where no server has the directory nothing is told as running: what has no ending is unsettled, and the next start
   sees to it.
"""

from interlock.look.commands import commands
from interlock.look.reading import in_use

__all__ = ["commands", "in_use"]
