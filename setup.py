"""Puts the boot line into site-packages, from a wheel and from an editable install alike.

Everything else is in pyproject.toml; setuptools has no setting for a .pth file.
"""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.editable_wheel import editable_wheel

BOOT_FILE = "miles_periodic_boot.pth"
BOOT_LINE = (
    "import os; os.environ.get('MILES_PERIODIC') and "
    "__import__('miles_periodic.compat.boot', fromlist=['start']).start()\n"
)


class BuildWithBoot(build_py):
    """A wheel whose root holds the boot line."""

    def run(self):
        super().run()
        if not self.editable_mode:
            Path(self.build_lib, BOOT_FILE).write_text(BOOT_LINE, encoding="utf-8")

    def get_outputs(self, include_bytecode=True):
        return [*super().get_outputs(include_bytecode), str(Path(self.build_lib, BOOT_FILE))]


class EditableWithBoot(editable_wheel):
    """An editable wheel whose root holds the boot line."""

    def _select_strategy(self, *args):
        return _StrategyWithBoot(super()._select_strategy(*args))


class _StrategyWithBoot:
    def __init__(self, strategy):
        self.strategy = strategy

    def __call__(self, wheel, files, mapping):
        self.strategy(wheel, files, mapping)
        wheel.writestr(BOOT_FILE, BOOT_LINE)

    def __enter__(self):
        self.strategy.__enter__()
        return self

    def __exit__(self, *exception):
        return self.strategy.__exit__(*exception)


setup(cmdclass={"build_py": BuildWithBoot, "editable_wheel": EditableWithBoot})
