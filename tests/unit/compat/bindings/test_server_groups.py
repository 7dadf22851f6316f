"""The groups of a run's servers: asked in the driver, set in an engine's process."""

import sys
from types import ModuleType, SimpleNamespace

import pytest

from miles_periodic.compat.bindings import features, server_groups
from miles_periodic.compat.tree import Tree
from miles_periodic.hooks import Feature, PeriodicError, hookimpl
from miles_periodic.hooks.manager import build_manager


class Cache(Feature):
    slug = "cache"
    why = "Keeps."
    exit = "Never."
    server_roles = ("decode",)

    def __init__(self):
        super().__init__()
        self.asked = []

    @hookimpl
    def server_arguments(self, servers):
        self.asked.append(servers)
        return {"keep": True} if servers.role == "decode" else None


@pytest.fixture
def feature(monkeypatch, tmp_path):
    made, notices = Cache(), []
    manager = build_manager([made])
    made.notices = notices
    monkeypatch.setattr(features, "manager", lambda: manager)
    monkeypatch.setattr(server_groups, "manager", lambda: manager)
    monkeypatch.setattr(server_groups, "member", lambda: SimpleNamespace(notice=notices.append))
    (tmp_path / "sglang" / "srt").mkdir(parents=True)
    monkeypatch.setattr(server_groups, "_tree", lambda: Tree.at("sglang", tmp_path))
    return made


@pytest.fixture
def miles(monkeypatch):
    """Miles's module of groups, with two groups however it is asked."""
    groups = [
        SimpleNamespace(worker_type="prefill", overrides={"x": 2}),
        SimpleNamespace(worker_type="placeholder", overrides={}),
        SimpleNamespace(worker_type="decode", overrides={}),
    ]
    config = SimpleNamespace(models=[SimpleNamespace(server_groups=groups)])
    module = ModuleType("sglang_config")
    module.SglangConfig = SimpleNamespace(
        from_yaml=lambda path: config, from_prefill_num_servers=lambda arguments: config
    )
    monkeypatch.setitem(sys.modules, "miles.backends.sglang_utils.sglang_config", module)


@pytest.fixture
def sglang(monkeypatch):
    def server_args(keep: bool = False, port: int = 0):
        return keep

    module = ModuleType("server_args")
    module.ServerArgs = server_args
    monkeypatch.setitem(sys.modules, "sglang.srt.server_args", module)


@pytest.mark.parametrize("option", ["prefill_num_servers", "sglang_config"])
def test_each_group_is_asked_with_its_overrides_over_the_command_line(feature, miles, option):
    arguments = SimpleNamespace(**{option: 1}, sglang_x=1, sglang_enable_hierarchical_cache=True)
    server_groups.settle(arguments)
    assert [(g.role, g.arguments.get("x")) for g in feature.asked] == [
        ("prefill", 2),
        ("decode", 1),
    ]
    assert "enable_hierarchical_cache" in feature.asked[0].arguments
    assert "enable_hierarchical_cache" not in feature.asked[1].arguments
    assert feature.notices == []


def test_a_run_without_servers_of_its_role_has_the_feature_off_and_says_so(feature):
    server_groups.settle(SimpleNamespace(prefill_num_servers=None, sglang_config=None))
    assert feature.notices == ["cache is off: no decode servers."]


def compute_server_args(args, rank, worker_type="regular"):
    return {"port": 1}, ["port"]


def test_an_engine_of_that_role_starts_its_server_with_the_argument(feature, sglang):
    arguments, checked = server_groups.complete(compute_server_args, None, (None, 0, "decode"), {})
    assert (arguments, checked) == ({"port": 1, "keep": True}, ["port"])
    assert feature.notices == ["decode server: keep=True"]


def test_an_engine_of_another_role_starts_its_server_as_before(feature, sglang):
    arguments, _ = server_groups.complete(compute_server_args, None, (None, 0), {})
    assert arguments == {"port": 1}


def test_an_argument_that_the_engines_sglang_does_not_have_is_an_error(
    feature, sglang, monkeypatch
):
    module = sys.modules["sglang.srt.server_args"]
    monkeypatch.setattr(module, "ServerArgs", lambda port=0: port)
    with pytest.raises(PeriodicError, match="SGLang has no argument 'keep'"):
        server_groups.complete(compute_server_args, None, (None, 0, "decode"), {})
