"""`interlock serve --agent-user`: what an agent of another user sees of a real server."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from .scene import WAIT_SECONDS, served

AGENT = """
import json, os
async def agent(run, message):
    log = os.fstat(2)
    try:
        os.ftruncate(2, 0)
        truncated = True
    except OSError:
        truncated = False
    names = [name for name in ("MODEL_KEY", "OTHER_KEY", "INTERLOCK_TOKEN") if name in os.environ]
    tool = await run.spawn("sh", "-c", "echo $MODEL_KEY$OTHER_KEY", cwd="/")
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return json.dumps([os.getuid(), names, os.environ.get("MODEL_KEY"), tool.output.strip(), truncated, sorted(pids)])
"""


def test_an_agent_of_another_user_has_what_was_named_and_no_more(tmp_path: Path) -> None:
    """The agent sees its own processes and the variable that --env names, nothing else, and cannot truncate the log."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to give rights away")
    (tmp_path / "written.py").write_text(textwrap.dedent(AGENT))
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = {"PYTHONPATH": path, "MODEL_KEY": "k-1", "OTHER_KEY": "k-2"}
    options = ("--agent-user", "nobody", "--env", "MODEL_KEY")
    with served("written:agent", tmp_path / "data", *options, env=env) as server:
        shell = str(Path(sys.executable).with_name("interlock"))
        sent = subprocess.run(
            [shell, "send", "--watch", "--url", server.ready["url"], "--data", str(server.data), "show"],
            capture_output=True,
            text=True,
            timeout=WAIT_SECONDS,
            check=False,
        )
        assert sent.returncode == 0, (sent.stderr, server.log())
        uid, names, key, tool, truncated, pids = json.loads(sent.stdout.strip().splitlines()[-1])
        assert uid not in (0, os.getuid())
        assert (names, key, tool, truncated) == (["MODEL_KEY"], "k-1", "k-1", False)
        assert pids[0] == 1 and len(pids) == 2, pids
        assert "k-1" not in server.log()
