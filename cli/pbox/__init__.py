"""`miles pbox`: sandboxes on this node.

agent        the agent itself
images       making and removing images
look         what runs: ls, top, logs, kill
run          one command in a sandbox, for a person
up           an agent for the time of one command of a job
child_agent  an agent as a child of the command that needs it
nodes        the agents of all nodes of a job
target       which agent, and as which job
"""

from __future__ import annotations

import typer

from miles_periodic.cli.pbox.agent import agent_command
from miles_periodic.cli.pbox.images import app as images
from miles_periodic.cli.pbox.look import kill_command, logs_command, ls_command, top_command
from miles_periodic.cli.pbox.run import run_command
from miles_periodic.cli.pbox.up import up_command

app = typer.Typer(no_args_is_help=True, help="Run and look at sandboxes on this node.")
app.command("agent")(agent_command)
app.command("ls")(ls_command)
app.command("top")(top_command)
app.command("logs")(logs_command)
app.command("kill")(kill_command)
app.command("run", context_settings={"ignore_unknown_options": True})(run_command)
app.command("up", context_settings={"ignore_unknown_options": True})(up_command)
app.add_typer(images, name="image")
