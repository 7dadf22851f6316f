"""What holds for the whole house: its packages, its maps, and that importing does nothing."""

import ast
import fnmatch
import re
import subprocess
import sys
from pathlib import Path

import pytest

from miles_periodic.hooks.settings import tomllib

ROOT = Path(__file__).parents[2]
ROOMS = ("cli", "compat", "hooks", "patches", "plugins", "upstream")
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
SETUPTOOLS = PYPROJECT["tool"]["setuptools"]
MODULES = sorted(path.relative_to(ROOT) for room in ROOMS for path in (ROOT / room).rglob("*.py"))
PACKAGES = [path.parent for path in MODULES if path.name == "__init__.py"]

#: Imported only inside a process that has torch.
OFFLOAD = "miles_periodic.plugins.chunked_optimizer_offload"
NEEDS_TORCH = {
    "miles_periodic.cli.bench.live_bytes",
    "miles_periodic.cli.bench.offload_contest",
    "miles_periodic.compat.cpu.cuda_mode",
    "miles_periodic.compat.cpu.fused_adam",
    "miles_periodic.compat.cpu.megatron_models",
    "miles_periodic.compat.cpu.megatron_saves",
    *(
        f"{OFFLOAD}.{name}"
        for name in (
            "adam",
            "exchange",
            "gradients",
            "host_memory",
            "lanes",
            "moments",
            "prepared",
            "residency",
            "rules",
            "stepper",
            "take_over",
            "workspace",
        )
    ),
    *(
        f"miles_periodic.plugins.fused_linear_cross_entropy.{name}"
        for name in ("chunked", "kernels", "log_probs")
    ),
}
#: Imported by those who have the extra that brings it: sources are read in its terms.
NEEDS_LIBCST = {"miles_periodic.patches.definitions", "miles_periodic.upstream.edits"}
#: Rooms that need an extra, and import what it brings.
EXTRAS = {"miles_periodic.plugins.pbox": "pbox"}
UPSTREAMS = ("miles", "megatron", "sglang", "torch", "ray", "transformers", "safetensors")
REFUSED = (*UPSTREAMS, "libcst")

IMPORT_ALL = """
import importlib, importlib.abc, sys

class Refuse(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {refused!r}:
            raise ImportError(f"{{name}} was imported")

sys.meta_path.insert(0, Refuse())
before = list(sys.meta_path)
for name in {names!r}:
    try:
        importlib.import_module(name)
    except Exception as error:
        print(f"{{name}}: {{type(error).__name__}}: {{error}}")
    if sys.meta_path != before:
        print(f"{{name}} changed sys.meta_path")
        sys.meta_path[:] = before
"""


def dotted(path):
    parts = path.with_suffix("").parts
    return ".".join(("miles_periodic", *(p for p in parts if p != "__init__")))


def test_every_folder_of_python_files_is_a_package_that_ships():
    folders = {dotted(path.parent) for path in MODULES}
    shapes = "miles_periodic.compat.known_shapes"
    assert sorted(folders | {shapes}) == SETUPTOOLS["packages"]


def test_every_folder_of_python_files_has_an_init():
    assert {path.parent for path in MODULES} == set(PACKAGES)


def test_every_file_that_is_no_code_ships():
    data = [
        path.relative_to(ROOT)
        for room in ROOMS
        for path in (ROOT / room).rglob("*")
        if path.is_file() and path.suffix not in (".py", ".pyc")
    ]
    patterns = [
        package.removeprefix("miles_periodic.").replace(".", "/") + "/" + pattern
        for package, found in SETUPTOOLS["package-data"].items()
        for pattern in found
    ]
    assert [p for p in data if not any(fnmatch.fnmatch(str(p), each) for each in patterns)] == []


@pytest.mark.parametrize("package", PACKAGES, ids=str)
def test_the_docstring_of_a_package_is_a_map_of_what_is_in_it(package):
    docstring = ast.get_docstring(ast.parse((ROOT / package / "__init__.py").read_text("utf-8")))
    inside = {path.stem for path in MODULES if path.parent == package} - {"__init__"}
    inside |= {path.name for path in PACKAGES if path.parent == package}
    assert inside <= set(re.findall(r"\w+", docstring))


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_a_module_says_what_it_is_for(module):
    assert ast.get_docstring(ast.parse((ROOT / module).read_text("utf-8")))


def imported_at_the_top(module):
    for node in ast.walk(ast.parse((ROOT / module).read_text("utf-8"))):
        if isinstance(node, ast.Import | ast.ImportFrom) and node.col_offset == 0:
            names = [alias.name for alias in node.names]
            yield from names if isinstance(node, ast.Import) else [node.module]


def names_in(entries):
    return {re.split(r"\W", entry)[0] for entry in entries}


def imported_from_outside(modules):
    tops = {name.partition(".")[0] for m in modules for name in imported_at_the_top(m)}
    return tops - set(sys.stdlib_module_names) - {"miles_periodic"}


def extra_of(module):
    return next((e for room, e in EXTRAS.items() if dotted(module).startswith(room)), None)


def test_the_dependencies_are_what_the_modules_import():
    ours = [
        m for m in MODULES if dotted(m) not in NEEDS_TORCH | NEEDS_LIBCST and extra_of(m) is None
    ]
    declared = names_in(PYPROJECT["project"]["dependencies"])
    assert imported_from_outside(ours) == declared - {"tomli"}


@pytest.mark.parametrize("extra", EXTRAS.values())
def test_an_extra_is_what_its_modules_import_beyond_the_dependencies(extra):
    ours = [m for m in MODULES if extra_of(m) == extra]
    core = names_in(PYPROJECT["project"]["dependencies"])
    declared = names_in(PYPROJECT["project"]["optional-dependencies"][extra])
    assert imported_from_outside(ours) - core == declared


def test_importing_any_module_needs_no_upstream_and_changes_nothing():
    names = [name for name in map(dotted, MODULES) if name not in NEEDS_TORCH | NEEDS_LIBCST]
    code = IMPORT_ALL.format(refused=REFUSED, names=names)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert (done.stdout, done.returncode) == ("", 0), done.stderr
