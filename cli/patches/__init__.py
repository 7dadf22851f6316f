"""`miles patches`: features as codemods for a checkout, an unpacked wheel or site-packages.

gather   the patch sets that a command is asked for, and how they stand in a checkout
show     what there is: headers, and states in a checkout
apply    put them in, all or nothing; take them out again
export   the same as files for git and quilt
"""

from __future__ import annotations

import typer

from miles_periodic.cli.patches.apply import apply_command, revert_command
from miles_periodic.cli.patches.export import export_command
from miles_periodic.cli.patches.show import check_command, list_command

app = typer.Typer(
    no_args_is_help=True, help="Put features into sources, for images and forks without hooks."
)
app.command("list")(list_command)
app.command("check")(check_command)
app.command("apply")(apply_command)
app.command("revert")(revert_command)
app.command("export")(export_command)
