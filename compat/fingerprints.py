"""Signature and content of an upstream target, and the shapes of it that are known to work.

Known shapes are facts, kept as data in `known_shapes/UPSTREAM/LABEL.json`, one file per tree.

    python -m miles_periodic.compat.fingerprints show  --tree miles=DIR
    python -m miles_periodic.compat.fingerprints write --tree miles=DIR --label miles-rl-0.0.2
    python -m miles_periodic.compat.fingerprints check --tree miles=DIR
"""

from __future__ import annotations

import ast
import copy
import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path

from miles_periodic.compat.tree import Definition, Tree


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What a target looks like.

    signature: the parameters as written, such as `(self, data, dp_size)`; for a class its bases.
    content: sha256 over the definition's AST without docstrings, decorators included; comments,
        blank lines and line numbers do not count, nor does the Python that reads the tree.
    """

    signature: str
    content: str


@dataclass(frozen=True, slots=True)
class KnownShape:
    """A fingerprint and the label of the tree in which it was seen."""

    label: str
    fingerprint: Fingerprint


def fingerprint_of(definition: Definition) -> Fingerprint:
    """The fingerprint of a parsed function, method or class."""
    bare = copy.deepcopy(definition)
    for node in ast.walk(bare):
        if isinstance(node, Definition) and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    text = "".join(_written(bare))
    return Fingerprint(_signature(definition), hashlib.sha256(text.encode()).hexdigest()[:32])


def _written(node: object) -> Iterator[str]:
    """A node as text that every Python from 3.10 writes alike.

    `ast.dump` does not: 3.12 added `type_params` and 3.13 leaves empty fields out.
    """
    if isinstance(node, list):
        yield "["
        for item in node:
            yield from _written(item)
        yield "]"
    elif isinstance(node, ast.AST):
        yield f"({type(node).__name__}"
        for name, value in ast.iter_fields(node):
            if value is not None and value != [] and name not in {"ctx", "kind", "type_comment"}:
                yield f" {name}="
                yield from _written(value)
        yield ")"
    else:
        yield repr(node)


def _signature(definition: Definition) -> str:
    if isinstance(definition, ast.ClassDef):
        return f"({', '.join(ast.unparse(base) for base in definition.bases)})"
    prefix = "async " if isinstance(definition, ast.AsyncFunctionDef) else ""
    return f"{prefix}({ast.unparse(definition.args)})"


def of_target(tree: Tree, target: str) -> Fingerprint | None:
    """The fingerprint of `package.module:Class.method` in a tree, or None where it is missing."""
    found = tree.find(target)
    return fingerprint_of(found[1]) if found else None


def shapes_folder() -> Path:
    """Where the known shapes of every upstream are kept."""
    return Path(__file__).with_name("known_shapes")


@lru_cache(maxsize=1)
def known_shapes() -> dict[str, tuple[KnownShape, ...]]:
    """Target to every shape of it that is known, over all recorded trees."""
    shapes: dict[str, list[KnownShape]] = {}
    for path in sorted(shapes_folder().glob("*/*.json")):
        recorded = json.loads(path.read_text(encoding="utf-8"))
        for target, parts in recorded["targets"].items():
            shape = KnownShape(recorded["label"], Fingerprint(**parts))
            shapes.setdefault(target, []).append(shape)
    return {target: tuple(found) for target, found in shapes.items()}


def record(tree: Tree, label: str, targets: Iterable[str]) -> Path:
    """Write the shapes of those `targets` that the tree has, and return the file."""
    seen = {target: of_target(tree, target) for target in sorted(set(targets))}
    body = {
        "label": label,
        "upstream": tree.upstream,
        "targets": {target: asdict(shape) for target, shape in seen.items() if shape},
    }
    path = shapes_folder() / tree.upstream / f"{label}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(body, indent=2) + "\n", encoding="utf-8")
    known_shapes.cache_clear()
    return path


if __name__ == "__main__":
    from miles_periodic.compat.fingerprint_command import app

    app()
