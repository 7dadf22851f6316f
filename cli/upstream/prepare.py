"""`miles upstream prepare`: a change of ours as a branch that is ready to be sent."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from miles_periodic.cli import messages
from miles_periodic.cli.interrupts import interruptible
from miles_periodic.compat.conditions import judge
from miles_periodic.compat.tree import Tree
from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.hooks.nearest_name import did_you_mean
from miles_periodic.upstream.base import Base
from miles_periodic.upstream.contributions import Contribution, contributions
from miles_periodic.upstream.description import TEMPLATES, description, parts_of
from miles_periodic.upstream.measurements import measured as measured_in
from miles_periodic.upstream.measurements import page
from miles_periodic.upstream.prepare import (
    Built,
    Tested,
    build,
    changes,
    package_root,
    run_tests,
)


def prepare_command(
    feature: Annotated[
        str,
        typer.Argument(
            metavar="FEATURE[.PART]",
            help="The feature's slug; of a second change for the same upstream with its part.",
        ),
    ],
    checkout: Annotated[
        Path,
        typer.Option(
            "--checkout",
            metavar="DIR",
            help="A git clone of the upstream. Its branch, index and files are not touched, so it "
            "may be dirty.",
        ),
    ],
    base: Annotated[
        str,
        typer.Option(
            "--base",
            metavar="REF",
            help="The commit to build on, such as [bold]origin/main[/bold].",
        ),
    ] = "HEAD",
    upstream: Annotated[
        str | None,
        typer.Option(
            "--upstream",
            metavar="NAME",
            help="sglang, megatron or miles, where the checkout has several.",
        ),
    ] = None,
    branch: Annotated[
        str | None,
        typer.Option("--branch", metavar="NAME", help="The new branch. Default: the change's own."),
    ] = None,
    measured: Annotated[
        Path | None,
        typer.Option(
            "--measured",
            metavar="FILE",
            help="Numbers for the text: a page like docs/benchmarks.md, or what "
            "[bold]miles bench … --json[/bold] printed, in a file whose name ends in .json.",
        ),
    ] = None,
    body: Annotated[
        Path | None,
        typer.Option("--body", metavar="FILE", help="Write the pull request's text there, too."),
    ] = None,
    test: Annotated[
        bool,
        typer.Option(
            "--test",
            help="Run the tests that each step adds at that step, where they must pass, and on the "
            "commit before, where they must fail; the text tells both. $PYTEST_ADDOPTS holds: "
            "[bold]--noconftest[/bold] where the upstream's own needs more than is installed.",
        ),
    ] = False,
    python: Annotated[
        str | None,
        typer.Option(
            "--python", metavar="PATH", help="The Python that runs these tests. Default: this one."
        ),
    ] = None,
) -> None:
    """Make a feature into a branch of an upstream's checkout: signed-off commits, tests, a text.

    One commit per step, formatted by the tools that the upstream's own configuration names. The
    text is filled into its template and kept as the branch's description. Nothing is pushed.
    """
    source = Base.at(checkout, base)
    change = _change(feature, source, upstream)
    name = branch or change.branch
    source.check_can_commit(name)
    numbers = _numbers(change, measured)
    with interruptible("nothing was kept."), source.work_tree() as folder:
        _check_is_news(change, source, folder)
        steps = changes(change, source)
        built = build(change, source, folder, steps)
        _check_is_there(change, folder)
        tested = run_tests(change, source, folder, built, python or sys.executable) if test else []
        _check_tests(change, tested)
    text = description(
        change.title, parts_of(change, numbers, _said(change, tested)), _template(source)
    )
    if body is not None:
        _write(body, text)
    source.keep(name, built.commits[-1], text)
    _say(change, source, name, built, tested)


def _change(feature: str, source: Base, upstream: str | None) -> Contribution:
    """The contribution that is meant; PeriodicError where none is, or several are."""
    known = contributions()
    of_feature = {up: change for (slug, up), change in known.items() if slug == feature}
    if not of_feature:
        slugs = sorted({slug for slug, _ in known})
        raise PeriodicError(
            f"Nothing of {feature!r} is ready to be sent.",
            expected=", ".join(slugs),
            remedy=did_you_mean(feature, slugs),
        )
    here = [
        up
        for up in of_feature
        if up in (upstream, *of_feature) and package_root(source, up) is not None
    ]
    fitting = [up for up in here if upstream in (None, up)]
    if len(fitting) == 1:
        return of_feature[fitting[0]]
    raise PeriodicError(
        f"{feature} can be sent to {' or '.join(of_feature)}.",
        tree=str(source.folder),
        expected=f"the package of {upstream or 'one of them'}",
        found=f"those of {' and '.join(here)}" if here else "no package of theirs",
        remedy="Name one with --upstream." if here else "Give --checkout a clone of one of them.",
    )


def _numbers(change: Contribution, given: Path | None) -> str:
    source = given or page()
    if not change.measured and given is None:
        return "The change is not about speed; nothing was measured."
    if not source.is_file():
        if given is None:
            return "None at hand."
        raise PeriodicError(f"{given} is no file.", remedy="Give --measured a page or a result.")
    try:
        return measured_in(source, change.measured)
    except ValueError as error:
        raise PeriodicError(
            f"{source} is no page of numbers.",
            found=str(error),
            remedy="Give --measured docs/benchmarks.md, or the JSON of a benchmark.",
        ) from error


def _write(body: Path, text: str) -> None:
    try:
        body.write_text(text, encoding="utf-8")
    except OSError as error:
        raise PeriodicError(
            f"{body} cannot be written: {error}.",
            remedy="Give --body a file in a folder that is there. Nothing was kept.",
        ) from error


def _check_is_news(change: Contribution, source: Base, folder: Path) -> None:
    if (probe := change.change.probe) is None:
        return
    verdict = judge(probe, Tree.at(change.upstream, folder))
    if verdict.holds:
        raise PeriodicError(
            f"The base has {change.row} already: {change.change.description}.",
            feature=change.feature,
            tree=f"{source.folder} at {source.commit[:12]}",
            found="; ".join(map(str, verdict.evidence)),
            remedy=f"Send nothing. Run `miles upstream show {change.row}`, and refresh the ledger.",
        )


def _check_is_there(change: Contribution, folder: Path) -> None:
    """The ledger's proof holds of what was built: else the row would never find it upstream."""
    probe = change.change.probe
    if probe is not None and not judge(probe, Tree.at(change.upstream, folder)).holds:
        raise PeriodicError(
            f"The proof of {change.row} does not hold of the change itself.",
            feature=change.feature,
            remedy="Report it: the ledger or the change is to be repaired. Nothing was kept.",
        )


def _check_tests(change: Contribution, tested: Sequence[Tested]) -> None:
    if all(each.proves for each in tested):
        return
    raise PeriodicError(
        "The added tests do not prove the change.",
        feature=change.feature,
        target=" ".join(change.tests),
        expected="they pass with the step that adds them, and fail on the commit before it",
        found="; ".join(str(each) for each in tested if not each.proves),
        remedy="Give --python an environment that can import the upstream. Nothing was kept.",
    )


def _said(change: Contribution, tested: Sequence[Tested]) -> str:
    command = f"python -m pytest {' '.join(change.tests)}"
    if not tested:
        return f"The added tests were not run here. Run: `{command}`."
    if words := os.environ.get("PYTEST_ADDOPTS"):
        command = f"PYTEST_ADDOPTS={shlex.quote(words)} {command}"
    return "\n".join([f"`{command}`", "", *(f"- {each}" for each in tested)])


def _template(source: Base) -> str | None:
    return next((text for path in TEMPLATES if (text := source.text(path))), None)


def _say(
    change: Contribution, source: Base, branch: str, built: Built, tested: Sequence[Tested]
) -> None:
    for step, commit in zip(change.steps, built.commits, strict=True):
        typer.echo(f"{commit[:12]} {step.subject}")
    for line in built.style or ("the base configures no formatter; nothing was formatted",):
        messages.say("style", line, "dim")
    for each in tested or (f"not run; --test runs {' '.join(change.tests)}",):
        messages.say("tests", each, "green" if tested else "dim")
    typer.echo(f"branch {branch} in {source.folder}, on {source.commit[:12]}; nothing was pushed")
    typer.echo(f"its text: git -C {source.folder} config branch.{branch}.description")
