"""One run: plan it, open the roll call, start the script, and end everything that fails."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from miles_periodic.cli import messages
from miles_periodic.cli.interrupts import end_of
from miles_periodic.cli.options import Selection
from miles_periodic.cli.selected import (
    Selected,
    bindings_of,
    in_sources_of,
    plan_for,
    select_features,
)
from miles_periodic.compat.manifest import RunManifest
from miles_periodic.compat.plan import Plan
from miles_periodic.compat.roll_call.absent import watch_for_absent
from miles_periodic.compat.roll_call.roll import Roll
from miles_periodic.compat.roll_call.server import RollCallServer
from miles_periodic.compat.run_processes import end_processes
from miles_periodic.compat.server_roles import roles_on
from miles_periodic.hooks.errors import ROLL_CALL_STATUS, PeriodicError, RollCallError

#: Ray's own channel for a driver's job configuration; `ray.init` merges it.
RAY_JOB_CONFIG = "RAY_JOB_CONFIG_JSON_ENV_VAR"


def launch(script: str, arguments: Sequence[str], selection: Selection) -> int:
    """Run `script` under the selected features; returns the exit status of the run.

    Without plugins this process becomes the script, and the call does not return. Raises
    PeriodicError, before anything is started, where a feature cannot be had.
    """
    command = command_of(script, arguments)
    if selection.plugins is None:
        _refuse_idle_options(selection)
        os.execv(command[0], command)
    selected = select_features(selection)
    idle = selected.idle(roles_on(arguments))
    plan = plan_for(selected, selection, before=first_on_path(script), idle=idle)
    refuse_problems(plan)
    selected = without_idle(selected, plan)
    dropped = plan.dropped()
    for slug in dropped:
        messages.warning(f"this run goes without {slug}, as allowed.")
    with open_roll_call(plan, dropped) as roll_call:
        manifest = manifest_of(
            roll_call, selected, dropped, in_sources=in_sources_of(plan, dropped)
        )
        environment = run_environment(manifest, os.environ)
        messages.say("periodic", f"run {manifest.run_id}, {_bindings_in_words(manifest)}.", "dim")
        return supervise(command, environment, roll_call)


def _bindings_in_words(manifest: RunManifest) -> str:
    patched = len(manifest.in_sources)
    said = f"{len(manifest.bindings)} bindings"
    return f"{said}, {patched} of them patched in the sources" if patched else said


def without_idle(selected: Selected, plan: Plan) -> Selected:
    """What is left of the features where the plan has some off; says so of each."""
    idle = {f.slug: plan.off(f.slug) for f in selected.features if plan.off(f.slug)}
    for slug, reason in idle.items():
        messages.say("periodic", f"{slug} is off: {reason}.", "dim")
    return selected.without(tuple(idle))


def _refuse_idle_options(selection: Selection) -> None:
    """Raise PeriodicError where options about plugins stand without any plugin."""
    if selection != Selection():
        raise PeriodicError(
            "Options about plugins were given, and no plugin is on.",
            remedy="Add --plugins periodic, or drop the other options.",
        )


def command_of(script: str, arguments: Sequence[str]) -> list[str]:
    """The child's command line; `train` is this project's entry for the miles-rl wheel."""
    if _is_our_entry(script):
        return [sys.executable, "-m", "miles_periodic.compat.train", *arguments]
    return [sys.executable, script, *arguments]


def first_on_path(script: str) -> Path:
    """The folder that the child's Python searches first: the script's, or for `-m` the current."""
    return Path.cwd() if _is_our_entry(script) else Path(script).resolve().parent


def _is_our_entry(script: str) -> bool:
    return script == "train" and not Path(script).is_file()


def refuse_problems(plan: Plan) -> None:
    """Say every problem of the plan but the first, and raise that one."""
    problems = plan.problems()
    for problem in problems[1:]:
        messages.error(problem)
    if problems:
        raise problems[0]


def open_roll_call(plan: Plan, without: Sequence[str]) -> RollCallServer:
    """A roll call over the plan's bindings, at an address that the run's nodes can reach."""
    address = os.environ.get("RAY_ADDRESS", "")
    elsewhere = address not in ("", "auto", "local") and not address.startswith("127.")
    host = os.environ.get("MILES_HOST_IP") or (_own_address() if elsewhere else "127.0.0.1")
    return RollCallServer(
        bindings_of(plan, without),
        run_id=uuid.uuid4().hex[:12],
        host=host,
        notify=lambda text: messages.say("periodic", text, "cyan"),
    )


def _own_address() -> str:
    import socket

    return socket.gethostbyname(socket.gethostname())


def manifest_of(
    roll_call: RollCallServer, selected: Selected, without: Sequence[str] = (), **more: Any
) -> RunManifest:
    """What the processes of the run are told; `more`: further fields of the manifest."""
    return RunManifest(
        run_id=roll_call.run_id,
        roll_call=roll_call.address,
        token=roll_call.token,
        features=selected.references(without),
        bindings=roll_call.roll.bindings,
        **more,
    )


def run_environment(manifest: RunManifest, environment: Mapping[str, str]) -> dict[str, str]:
    """The child's environment: the gate for it, and through Ray's runtime_env for every node."""
    gate = manifest.environment()
    try:
        job = json.loads(environment.get(RAY_JOB_CONFIG) or "{}")
        job.setdefault("runtime_env", {}).setdefault("env_vars", {}).update(gate)
    except (ValueError, AttributeError, TypeError) as error:
        raise PeriodicError(
            f"{RAY_JOB_CONFIG} is set to something that is no job configuration: {error}.",
            remedy=f"Unset {RAY_JOB_CONFIG}, or set it to a JSON object.",
        ) from error
    return {**environment, **gate, RAY_JOB_CONFIG: json.dumps(job)}


def supervise(
    command: Sequence[str], environment: Mapping[str, str], roll_call: RollCallServer
) -> int:
    """Run the child until it ends or the roll call fails; returns the run's exit status.

    SIGINT, SIGTERM and SIGHUP are passed on; on a failed roll call every process of the run on
    this node is ended within seconds.
    """
    with _signals_passed_on() as passed_on:
        child = passed_on.start(command, environment)
        roll_call.roll.driver_pid = child.pid
        end_on_failure(roll_call, child)
        status = end_of(child)
    roll_call.hear_out(child.pid)
    return verdict(status, roll_call)


def verdict(status: int, roll_call: RollCallServer) -> int:
    """The run's exit status: the roll call's word first, then the child's."""
    for failure in roll_call.roll.failures:
        messages.roll_call_failed(failure)
    if roll_call.roll.failures:
        end_processes(roll_call.run_id)
        return ROLL_CALL_STATUS
    if status == 0 and not (_was_joined(roll_call) and _did_its_work(roll_call.roll)):
        return ROLL_CALL_STATUS
    return 128 - status if status < 0 else status


def _was_joined(roll_call: RollCallServer) -> bool:
    """Whether any process of a run with bindings said hello; says why not."""
    try:
        roll_call.require_joined()
    except RollCallError as error:
        messages.error(error)
        return False
    return True


def _did_its_work(roll: Roll) -> bool:
    """Whether a run that ended well had its features; says what it had not."""
    for name in roll.never_consulted():
        messages.warning(f"{name} was applied and never consulted in this run.")
    missing = roll.missing()
    if not missing:
        return True
    if roll.was_mustered or not roll.anything_applied:
        for sentence in missing:
            messages.roll_call_failed(f"{sentence}.")
        return False
    messages.warning(
        "the script ended before Miles's servers and trainers were up; no feature did anything."
    )
    return True


def end_on_failure(roll_call: RollCallServer, child: subprocess.Popen) -> None:
    """From now on, until `child` ends: a failed roll call ends every process of the run here."""

    def watch() -> None:
        while child.poll() is None:
            if roll_call.failed.wait(0.2):
                end_processes(roll_call.run_id)
                return

    watch_for_absent(roll_call, is_over=lambda: child.poll() is not None)
    threading.Thread(target=watch, daemon=True).start()


class _signals_passed_on:
    """What would end the launcher goes to its child's process group, from the child's start on.

    A SIGHUP that is ignored, as under nohup, stays ignored.
    """

    def __init__(self) -> None:
        self.child: subprocess.Popen | None = None
        self.early: list[int] = []

    def start(self, command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen:
        """The child, which also gets the signals that came while it was started."""
        self.child = subprocess.Popen(command, env=dict(environment), start_new_session=True)
        for number in self.early:
            self._pass_on(number, None)
        return self.child

    def __enter__(self) -> _signals_passed_on:
        numbers = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
            numbers.append(signal.SIGHUP)
        self.before = {number: signal.signal(number, self._pass_on) for number in numbers}
        return self

    def _pass_on(self, number, frame) -> None:
        if self.child is None:
            self.early.append(number)
        elif self.child.poll() is None:
            os.killpg(self.child.pid, number)

    def __exit__(self, *exception) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)
