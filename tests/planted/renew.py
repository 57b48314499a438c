"""Renew planted bugs whose surroundings have moved: apply with less context, and write the diff again.

python tests/planted/renew.py            every patch that does not apply any more
python tests/planted/renew.py NAME...    these
A bug whose own lines have changed cannot be renewed so; edit its patch by hand.
"""

from __future__ import annotations

import difflib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent


def applies(patch: Path, place: Path, *options: str) -> bool:
    """Apply a patch in a place; return whether it went in."""
    command = ["git", "apply", "-p1", *options, str(patch)]
    return subprocess.run(command, cwd=place, capture_output=True, check=False).returncode == 0


def renewed(patch: Path) -> str | None:
    """Return a patch with the surroundings of today, None if it cannot be placed."""
    with tempfile.TemporaryDirectory() as made:
        place = Path(made)
        shutil.copytree(ROOT / "src", place / "src", ignore=shutil.ignore_patterns("__pycache__"))
        if not any(applies(patch, place, f"-C{lines}", "--recount") for lines in (3, 2, 1)):
            return None
        text = patch.read_text().split("\n", 1)[0] + "\n\n"
        for path in sorted(place.rglob("*.py")):
            name = path.relative_to(place)
            old, new = (ROOT / name).read_text().splitlines(True), path.read_text().splitlines(True)
            text += "".join(difflib.unified_diff(old, new, f"a/{name}", f"b/{name}"))
        return text


def main() -> int:
    """Renew what was asked for, or everything that is stale."""
    asked = set(sys.argv[1:])
    left = 0
    for patch in sorted(HERE.rglob("*.patch")):
        if patch.stem in asked or (not asked and not applies(patch, ROOT, "--check")):
            text = renewed(patch)
            left += text is None
            print(f"{patch.stem}: {'edit it by hand' if text is None else 'renewed'}")
            if text is not None:
                patch.write_text(text)
    return left


if __name__ == "__main__":
    sys.exit(main())
