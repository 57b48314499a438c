"""Finds by trial how an agent's module does in hosts: it is imported in a zygote, and one host is forked from that."""

import time

from interlock.agent.order import SpawnFailed
from interlock.core.errors import BadInput
from interlock.hosts.forked import ForkedHosts
from interlock.processes import kernel
from interlock.processes.doctor import Fact
from interlock.processes.local import LocalProcesses

MIB = 1024 * 1024


async def examine_agent(agent: str) -> list[Fact]:
    """Import an agent, start a host for it, and return how that went."""
    processes = LocalProcesses()
    hosts = ForkedHosts(agent, {}, processes)
    try:
        began = time.perf_counter()
        await hosts.open()
        imported = time.perf_counter()
        host = await hosts.start()
        started = time.perf_counter()
        facts = [Fact(name="agent", found=f"{agent}, imported in {(imported - began) * 1000:.0f} ms", good=True)]
        took = f"a host is ready in {(started - imported) * 1000:.0f} ms"
        if hosts.cold is None:
            facts.append(Fact(name="hosts", found=f"forked warm from a zygote; {took}", good=True))
        else:
            change = "do that when the agent is first called, not when its module is imported"
            facts.append(Fact(name="hosts", found=f"spawned, because {hosts.cold}; {took}", good=False, change=change))
        facts.append(Fact(name="memory of a host", found=f"{_private(host.pid or 0) / MIB:.1f} MiB of its own"))
        limit = processes.confinement.host_memory
        assert processes.machine is not None
        bound = "none" if limit is None else f"{limit // MIB} MiB by {processes.machine.memory}"
        facts.append(Fact(name="limit of memory of a host", found=bound))
        host.kill()
        return facts
    except (BadInput, SpawnFailed) as error:
        return [Fact(name="agent", found=getattr(error, "strerror", None) or str(error), good=False)]
    finally:
        await hosts.close()
        await processes.close()


def _private(pid: int) -> int:
    """Return the bytes of memory that a process shares with no other."""
    try:
        lines = kernel.read(f"/proc/{pid}/smaps_rollup").splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Private_"))
