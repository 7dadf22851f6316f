"""An upstream's sources as a tree: found, read and parsed, never imported."""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, lru_cache
from importlib.machinery import ModuleSpec
from pathlib import Path

from miles_periodic.hooks.decisions import UPSTREAMS, Evidence
from miles_periodic.hooks.errors import PeriodicError

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class Tree:
    """The package folders of one upstream (`megatron` is a namespace and may have several).

    `name` is for messages: the folder that was given or found. Paths that leave this class are
    relative to the folder that holds the package, such as `sglang/srt/server_args.py`.
    """

    def __init__(self, upstream: str, portions: Sequence[Path]) -> None:
        self.upstream = upstream
        self.portions = tuple(portions)

    @property
    def name(self) -> str:
        return f"{self.upstream} at {self.portions[0]}"

    def __repr__(self) -> str:
        return f"Tree({self.name})"

    @classmethod
    def at(cls, upstream: str, folder: Path) -> Tree:
        """The tree in `folder`, which is the package itself or holds it.

        Raises PeriodicError where neither is so.
        """
        if upstream not in UPSTREAMS:
            raise PeriodicError(
                f"No upstream is named {upstream!r}.",
                remedy=f"Write --tree with one of {', '.join(UPSTREAMS)}.",
            )
        folder = Path(os.path.expanduser(folder))
        inside = folder / upstream
        for candidate in (inside, folder / "python" / upstream, folder):
            if _is_package(upstream, candidate):
                return cls(upstream, [candidate.resolve()])
        raise PeriodicError(
            f"{folder} holds no package {upstream!r}.",
            tree=str(folder),
            expected=f"Python sources in {folder} or {inside}",
            found="a folder without them" if os.path.isdir(folder) else "no such folder",
            remedy=f"Give --tree {upstream}=DIR the package folder or the folder that holds it.",
        )

    @classmethod
    def installed(cls, upstream: str, before: Path | None = None) -> Tree | None:
        """The tree that a new process's `import UPSTREAM` would take, or None where there is none.

        before: a folder that the importing process searches first: Python puts a script's own
            folder in front, and Miles's scripts stand next to a `miles` package.
        """
        with _searched_first(before):
            spec = _found(upstream)
        if spec is None or not spec.submodule_search_locations:
            return None
        portions = [Path(p) for p in spec.submodule_search_locations if Path(p).is_dir()]
        return cls(upstream, portions) if portions else None

    def file(self, module: str) -> Path | None:
        """The source file of a dotted module name, or None."""
        parts = module.split(".")
        if parts[0] != self.upstream:
            return None
        for portion in self.portions:
            base = portion.joinpath(*parts[1:])
            for candidate in (base.with_suffix(".py"), base / "__init__.py"):
                inside = len(parts) > 1 or candidate.name == "__init__.py"
                if inside and candidate.is_file():
                    return candidate
        return None

    def relative(self, path: Path) -> str:
        """`path` as it stands in evidence."""
        for portion in self.portions:
            if path.is_relative_to(portion):
                return str(Path(self.upstream) / path.relative_to(portion))
        return str(path)

    def module(self, module: str) -> SourceModule | None:
        """The parsed module, or None where the tree has no such file."""
        path = self.file(module)
        return read_module(self, path) if path else None

    def find(self, target: str) -> tuple[SourceModule, Definition] | None:
        """The definition that `package.module:Class.method` names, or None."""
        module_name, _, qualname = target.partition(":")
        source = self.module(module_name)
        definition = source.definition(qualname) if source else None
        return (source, definition) if source and definition is not None else None

    def containing(self, text: str, *folders: str) -> Iterator[SourceModule]:
        """The modules below `folders` in whose text `text` occurs; the others are not parsed."""
        for path in self._files(folders or (".",)):
            if text in read_text(path):
                yield read_module(self, path)

    def stamp(self, *folders: str) -> int:
        """A number that is another one when a source file below `folders` changed, came or went."""
        return hash(tuple((path, *_stamp(path)) for path in self._files(folders or (".",))))

    def _files(self, folders: Sequence[str]) -> Iterator[Path]:
        """The source files below `folders`; an editor's dangling lock link is none."""
        for portion in self.portions:
            for folder in folders:
                base = portion / folder
                files = [base] if base.is_file() else sorted(base.rglob("*.py"))
                yield from (path for path in files if path.is_file())


def _found(package: str) -> ModuleSpec | None:
    """As `importlib.util.find_spec`, which says of an imported package only where it came from."""
    found = (finder.find_spec(package, None) for finder in sys.meta_path)
    return next((spec for spec in found if spec is not None), None)


@contextmanager
def _searched_first(folder: Path | None) -> Iterator[None]:
    held = list(sys.path)
    if folder is not None:
        sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path[:] = held


#: Folders that tell an upstream's package from any other folder of Python files.
LANDMARKS = {"sglang": ("srt",), "megatron": ("core",), "miles": ("rollout", "backends", "ray")}


def _is_package(upstream: str, folder: Path) -> bool:
    if not os.path.isdir(folder):
        return False
    named = folder.name == upstream and any(folder.glob("**/*.py"))
    return named or any((folder / landmark).is_dir() for landmark in LANDMARKS[upstream])


def read_text(path: Path) -> str:
    """A source file's text without a byte order mark; undecodable bytes become replacements.

    A file that changed is read again.
    """
    return _text_at(path, *_stamp(path))


def _stamp(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_mtime_ns, status.st_size


@lru_cache(maxsize=4096)
def _text_at(path: Path, changed_ns: int, size_bytes: int) -> str:
    return path.read_text(encoding="utf-8-sig", errors="replace")


class SourceModule:
    """One source file: its text, its AST, and what it defines."""

    def __init__(self, tree: Tree, path: Path) -> None:
        self.tree = tree
        self.path = path
        self.text = read_text(path)

    @cached_property
    def syntax(self) -> ast.Module:
        try:
            return ast.parse(self.text)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            line = getattr(error, "lineno", None)
            raise PeriodicError(
                f"{self.path} is not Python that this interpreter can read: {error}.",
                tree=self.tree.name,
                target=self.tree.relative(self.path) + (f":{line}" if line else ""),
                remedy="Repair the tree, or plan with the Python that runs it.",
            ) from error

    @cached_property
    def parents(self) -> dict[ast.AST, ast.AST]:
        """Every node of the AST to the node that holds it."""
        nodes = ast.walk(self.syntax)
        return {child: node for node in nodes for child in ast.iter_child_nodes(node)}

    @cached_property
    def classes(self) -> tuple[ast.ClassDef, ...]:
        """Every class in the module, nested ones included."""
        return tuple(node for node in ast.walk(self.syntax) if isinstance(node, ast.ClassDef))

    @cached_property
    def functions(self) -> tuple[ast.FunctionDef | ast.AsyncFunctionDef, ...]:
        """Every function and method in the module, nested ones included."""
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
        return tuple(node for node in ast.walk(self.syntax) if isinstance(node, kinds))

    @cached_property
    def attribute_loads(self) -> dict[str, list[ast.expr]]:
        """Attribute name to the expressions that read it, `getattr(x, "name")` included."""
        found: dict[str, list[ast.expr]] = {}
        for node in ast.walk(self.syntax):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                found.setdefault(node.attr, []).append(node)
            elif isinstance(node, ast.Call) and (name := getattr_name(node)) is not None:
                found.setdefault(name, []).append(node)
        return found

    def enclosing(self, node: ast.AST, *kinds: type[ast.AST]) -> ast.AST | None:
        """The nearest node of one of `kinds` that holds `node`."""
        above = self.parents.get(node)
        while above is not None and not isinstance(above, kinds):
            above = self.parents.get(above)
        return above

    def qualname(self, node: ast.AST) -> str:
        """The dotted name of the definition that `node` is or stands in; empty at the top level."""
        names = [node.name] if isinstance(node, Definition) else []
        above = self.enclosing(node, *_DEFINITIONS)
        while above is not None:
            names.append(above.name)
            above = self.enclosing(above, *_DEFINITIONS)
        return ".".join(reversed(names))

    def definition(self, qualname: str) -> Definition | None:
        """The function, method or class of that dotted name at the module's top level.

        Where a name is defined more than once (an `if`/`else` or an overload), the last one
        wins, as it does at run time in straight-line code.
        """
        scope: ast.AST = self.syntax
        for part in qualname.split("."):
            found = [node for node in _defined_in(scope) if node.name == part]
            if not found:
                return None
            scope = found[-1]
        return scope if isinstance(scope, Definition) else None

    def evidence(self, node: ast.AST | int, what: str) -> Evidence:
        """Evidence at a node of this module, or at a line."""
        line = node if isinstance(node, int) else node.lineno
        return Evidence(self.tree.relative(self.path), line, what)


def getattr_name(call: ast.Call) -> str | None:
    """The name that `getattr(x, "name")` reads, or None where the call is another one."""
    is_getattr = isinstance(call.func, ast.Name) and call.func.id == "getattr"
    if is_getattr and len(call.args) >= 2 and isinstance(call.args[1], ast.Constant):
        return str(call.args[1].value)
    return None


def _defined_in(scope: ast.AST) -> Iterator[Definition]:
    """Definitions in a body, looking through `if`, `try` and `with`, not into functions."""
    for node in ast.iter_child_nodes(scope):
        if isinstance(node, Definition):
            yield node
        elif isinstance(node, ast.If | ast.Try | ast.With | ast.ExceptHandler):
            yield from _defined_in(node)


def read_module(tree: Tree, path: Path) -> SourceModule:
    """The module of a file, parsed once per tree and state of the file."""
    return _module_at(tree, path, *_stamp(path))


@lru_cache(maxsize=4096)
def _module_at(tree: Tree, path: Path, changed_ns: int, size_bytes: int) -> SourceModule:
    return SourceModule(tree, path)
