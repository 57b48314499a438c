"""Finds agents by name, `module:name`. An agent is imported in the process in which it runs, and nowhere else."""

import importlib
import inspect
import sys
from pathlib import Path

from interlock.agent.bounds import SERVED as SERVED  # noqa: PLC0414 - exported again
from interlock.agent.run import Agent
from interlock.core.errors import BadInput


def agent_name(agent: object) -> str:
    """Return an agent's name as `module:name`, or raise BadInput that says how it must be given."""
    if not isinstance(agent, str):
        module, name = getattr(agent, "__module__", "mymodule"), getattr(agent, "__qualname__", "agent")
        # A host cannot import `__main__`; it imports the file by its own name.
        if module == "__main__":
            module = Path(getattr(sys.modules[module], "__file__", None) or "myscript.py").stem
        raise BadInput(
            "the host driver imports the agent in a process of its own: "
            f"give it as text, 'module:name' (perhaps {f'{module}:{name}'!r}), not as {type(agent).__name__}"
        )
    module, colon, name = agent.partition(":")
    parts = [*module.split("."), *name.split(".")]
    if not colon or not all(part.isidentifier() for part in parts):
        raise BadInput(
            f"no agent {agent!r:.80}; an agent is one async callable, "
            "given as itself or as text: 'myagents.chat:assistant' (module:name)"
        )
    if module == "__main__":
        raise BadInput("a host cannot import __main__; give the file's own name, as in 'myscript:agent'")
    return agent


def find_agent(agent: Agent | str) -> Agent:
    """Return the agent, imported if it is given by name."""
    found: object = agent
    if isinstance(agent, str):
        module, _, name = agent_name(agent).partition(":")
        try:
            found = importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{module}.".startswith(f"{error.name}."):
                raise
            raise BadInput(f"no module {module!r} for agent {agent!r}; is its directory on the Python path?") from None
        for part in name.split("."):
            if not hasattr(found, part):
                raise BadInput(f"module {module!r} has no {name!r}; the agent is given as module:name")
            found = getattr(found, part)
    if not callable(found) or not (
        inspect.iscoroutinefunction(found) or inspect.iscoroutinefunction(type(found).__call__)
    ):
        raise BadInput("an agent is one async callable: `async def agent(run, message)`")
    return found
