"""What runsc is told to run."""

import ast
from pathlib import Path

from miles_periodic.plugins.pbox.limits import Limits
from miles_periodic.plugins.pbox.node.bundle import configuration, guest_source
from miles_periodic.plugins.pbox.node.layers import Layers, _escaped


def made(**limits):
    return configuration(Layers(Path("/state/x")), "/usr/bin/python3", Limits(**limits), "box")


def test_every_mount_in_memory_has_a_size():
    """What gVisor mounts by itself has none."""
    mounts = {m["destination"]: m for m in made(scratch_bytes=3 << 20)["mounts"]}
    assert {"/tmp", "/dev", "/dev/shm"} <= set(mounts)
    for mount in mounts.values():
        if mount["type"] == "tmpfs":
            assert any(option.startswith("size=") for option in mount["options"])
    assert "size=3145728" in mounts["/tmp"]["options"]


def test_work_is_a_mount_of_its_own_so_that_both_sides_see_changes():
    mounts = {m["destination"]: m for m in made()["mounts"]}
    assert mounts["/work"]["source"] == "/state/x/files"


def test_nothing_is_inherited_by_a_command():
    process = made()["process"]
    assert "inheritable" not in process["capabilities"] and "ambient" not in process["capabilities"]
    assert process["noNewPrivileges"] is True


def test_process_one_imports_nothing_that_costs_time():
    nodes = ast.walk(ast.parse(guest_source()))
    imports = [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {alias.name for node in imports for alias in node.names}
    assert names == {"_signal", "os", "select", "struct"}


def test_a_path_is_a_mount_option_whatever_is_in_it():
    assert _escaped(Path("/a:b,c\\d")) == "/a\\:b\\,c\\\\d"
