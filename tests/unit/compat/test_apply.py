"""One binding onto one module: what is put in, and how it survives being shipped."""

import asyncio
import pickle
import sys
from types import FunctionType, ModuleType

import pytest

from miles_periodic.compat import apply as apply_module
from miles_periodic.compat.apply import BindingError, apply_binding
from miles_periodic.compat.binding import Binding


def exclaim(wrapped, instance, args, kwargs):
    return f"{wrapped(*args, **kwargs)}!"


SOURCE = """
class Engine:
    def pause(self, mode="retract"):
        return mode

    async def generate(self):
        return "rows"

def log(text):
    return text
"""


@pytest.fixture
def upstream(monkeypatch):
    module = ModuleType("toy_engine")
    exec(compile(SOURCE, "toy_engine.py", "exec"), vars(module))
    monkeypatch.setitem(sys.modules, "toy_engine", module)
    monkeypatch.setattr(apply_module, "_load", lambda path: exclaim)
    return module


def bind(module, qualname, upstream="miles"):
    target = f"toy_engine:{qualname}"
    return apply_binding(Binding("toy/one", upstream, target, "toy:exclaim"), module)


def test_a_bound_function_is_still_found_in_place(upstream):
    applied = bind(upstream, "log")
    assert upstream.log("text") == "text!" and applied.in_place()
    upstream.log = None
    assert not applied.in_place()


def test_a_function_that_travels_with_a_class_arrives_as_its_name(upstream):
    bind(upstream, "log")
    assert pickle.loads(pickle.dumps(upstream.log)) is upstream.log


def test_a_method_of_miles_is_a_plain_function_which_an_actor_copies_whole(upstream):
    applied = bind(upstream, "Engine.pause")
    assert type(vars(upstream.Engine)["pause"]) is FunctionType
    assert upstream.Engine().pause(mode="in_place") == "in_place!" and applied.in_place()


def test_an_asynchronous_method_still_looks_like_one(upstream):
    bind(upstream, "Engine.generate")
    assert asyncio.iscoroutinefunction(upstream.Engine.generate)


def test_a_second_application_is_an_error(upstream):
    bind(upstream, "Engine.pause")
    with pytest.raises(BindingError, match="already applied"):
        bind(upstream, "Engine.pause")


def test_a_target_that_is_not_there_is_an_error(upstream):
    with pytest.raises(BindingError, match="no such name"):
        bind(upstream, "Scheduler.pause")
