"""The objects in the middle stay small, and each part of a run has one writer."""

import ast
from collections.abc import Iterator
from pathlib import Path

import interlock.runtime

RUNTIME = Path(interlock.runtime.__file__).parent
SOURCES = sorted(RUNTIME.parent.rglob("*.py"))
ATTRIBUTES = 25

# Beside its own file: who may write the attributes of a part. Restoring builds a run that an earlier start began.
WRITERS: dict[str, set[str]] = {
    "arrival": set(),
    "admittance": {"arrival.py", "inbox.py", "restoring.py"},
    "limits": {"limits.py", "deadlines.py", "restoring.py"},
    "ties": {"ties.py", "registry.py", "restoring.py"},
    "work": {"work.py", "restoring.py"},
}


def test_a_part_of_a_run_has_one_writer() -> None:
    """A part's attributes are set in its own file and by its one writer; everybody else calls its methods."""
    found = [
        f"{path.name}:{target.lineno} {ast.unparse(target)}"
        for path in SOURCES
        for target in _targets(ast.parse(path.read_text("utf-8")))
        if isinstance(target.value, ast.Attribute)
        and target.value.attr in WRITERS
        and path.name not in WRITERS[target.value.attr]
    ]
    assert found == []


def test_no_class_of_the_runtime_is_wide() -> None:
    """No class of the runtime has more than 25 attributes, those of the classes above it counted."""
    classes = {
        node.name: node
        for path in RUNTIME.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.ClassDef)
    }

    def attributes(node: ast.ClassDef) -> set[str]:
        above = [classes[base.id] for base in node.bases if isinstance(base, ast.Name) and base.id in classes]
        own = {each.attr for each in _targets(node) if isinstance(each.value, ast.Name) and each.value.id == "self"}
        return own.union(*map(attributes, above))

    assert {name for name, node in classes.items() if len(attributes(node)) > ATTRIBUTES} == set()


def _targets(tree: ast.AST) -> Iterator[ast.Attribute]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node
