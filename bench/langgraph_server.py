"""`python -m bench.langgraph_server PORT JOBS`: LangGraph's in-memory server with a graph that does nothing.

Runs in an environment of its own (`bench.langgraph` makes it), without reload, files, logs, blocking checks, version
check and tracing: only what a run needs. The server imports this file once more to find the graph.
"""

import os
import sys
from typing import TypedDict

from langgraph.graph import END, START, StateGraph


class State(TypedDict):
    """The state of the graph."""

    text: str


async def nothing(state: State) -> State:
    """Do nothing."""
    return {"text": ""}


_building = StateGraph(State)
_building.add_node("nothing", nothing)
_building.add_edge(START, "nothing")
_building.add_edge("nothing", END)
graph = _building.compile()


if __name__ == "__main__":
    os.environ |= {
        "LANGGRAPH_NO_VERSION_CHECK": "true",
        "LANGSMITH_TRACING": "false",
        "LOG_LEVEL": "ERROR",
    }
    from langgraph_api.cli import run_server

    run_server(
        port=int(sys.argv[1]),
        graphs={"nothing": f"{__file__}:graph"},
        n_jobs_per_worker=int(sys.argv[2]),
        reload=False,
        open_browser=False,
        disable_persistence=True,
        allow_blocking=True,
        server_level="ERROR",
        timeout_keep_alive=3_600,  # a client's connection outlives the turns of the others
    )
