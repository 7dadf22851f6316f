"""`miles compat`: every feature against every release.

matrix   plan all of it, compare it with what is on file, write it down
add      take a release into the matrix, and say what changed
gather   a release's facts, with the ledger's claims, in as many processes as there are cores
page     the matrix as the Markdown page docs/compatibility.md
tables   the matrix as terminal tables
"""

from __future__ import annotations

import typer

from miles_periodic.cli.compat.add import add_command
from miles_periodic.cli.compat.matrix import matrix_command

app = typer.Typer(no_args_is_help=True, help="Prove where each feature stands on each release.")
app.command("matrix")(matrix_command)
app.command("add")(add_command)
