"""`miles upstream`: what upstreams are doing about our features.

status   a table of features, changes and what they mean here; one change with its proof
refresh  ask GitHub how they stand
expired  code of ours that no release needs any more
verify   prove the ledger's claims on the sources of releases
prepare  make a change of ours into a branch of the upstream's checkout
"""

from __future__ import annotations

import typer

from miles_periodic.cli.upstream.expired import expired_command
from miles_periodic.cli.upstream.prepare import prepare_command
from miles_periodic.cli.upstream.refresh import refresh_command
from miles_periodic.cli.upstream.status import show_command, status_command
from miles_periodic.cli.upstream.verify import verify_command

app = typer.Typer(no_args_is_help=True, help="Follow what upstreams do about our features.")
app.command("status")(status_command)
app.command("show")(show_command)
app.command("refresh")(refresh_command)
app.command("expired")(expired_command)
app.command("verify")(verify_command)
app.command("prepare")(prepare_command)
