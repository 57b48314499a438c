"""The `interlock` command.

1. A command imports what it needs, when it runs: a verb of the shell loads no runtime, no store and no server.
2. States are told in the words of the lifecycle, endings in those of core/projection, with their exit codes.
3. Output is for programs (`--json`) or for people; what went wrong is one line on the error output.
"""

import gc
import os
import sys


def main() -> None:
    """Run the `interlock` command."""
    gc.disable()  # what is imported stays, so a collection would only cost time; the command turns it on again
    _open_descriptors()
    try:
        from interlock.cli.app import run  # noqa: PLC0415 - the extra `cli` may be missing
    except ModuleNotFoundError as missing:
        extra = "serve" if sys.argv[1:2] == ["serve"] else "cli"
        need = f"this command needs {missing.name}; install it: pip install 'interlock[{extra}]'"
        sys.stderr.write(f"interlock: {need}\n")
        sys.exit(125)
    try:
        sys.exit(run(sys.argv[1:]))
    finally:
        gc.freeze()  # Python looks for garbage when it exits, which takes a fifth of a verb's time


def _open_descriptors() -> None:
    """Open 0, 1 and 2 if they are closed: a file opened later would otherwise become the command's input or output."""
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != fd:
                os.dup2(opened, fd)
                os.close(opened)
            os.set_inheritable(fd, True)
    sys.stdout = sys.stdout or os.fdopen(1, "w")  # None if descriptor 1 was closed when Python started
