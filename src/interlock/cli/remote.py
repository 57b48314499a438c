"""The same documents from a gateway instead of a store.

A gateway returns no tools, questions and processes of a run by themselves; the run's timeline names them.
"""

from pathlib import Path

from interlock.cli.asking import ask
from interlock.cli.documents import LATEST, RunLine, Runs, Shown, line_of
from interlock.client.socket import RemoteClient
from interlock.core.answers import RunInfo
from interlock.core.errors import Unknown

MOST = 1_000  # runs of all sessions, with --all


def runs(url: str, data: Path, session: str | None, *, tree: bool, every: bool) -> Runs:
    """List runs that the token's bearer may see."""

    async def asking(client: RemoteClient) -> list[RunInfo]:
        return await client.runs(session, tree=tree, latest=0 if session else MOST if every else LATEST + 1)

    found = ask(url, data, asking)
    listed = found if every else found[-LATEST:]
    return Runs(data=url, in_use=True, runs=tuple(map(_line, listed)), more=len(listed) < len(found))


def show(url: str, data: Path, run: str) -> Shown:
    """Find one run, by its id or its key."""

    async def asking(client: RemoteClient) -> Shown:
        found = await client.find(run)
        if found is None:
            raise Unknown(f"no run {run!r:.80} that you may see at {url}; `interlock runs --url` lists them")
        return Shown(
            data=url,
            in_use=True,
            parked=False,
            run=_line(found),
            reply="" if found.outcome is None else found.outcome.text,
            receipt=None if found.outcome is None else await client.receipt(found.id),
            timeline=tuple(await client.timeline(found.id)),
        )

    return ask(url, data, asking)


def _line(run: RunInfo) -> RunLine:
    started = run.state.started or (run.outcome is not None and run.outcome.started_at is not None)
    return line_of(RunLine, run, unsettled=False, started=started, deadline=None, alias=None)
