"""`miles bench`: numbers, each measured by a command.

boot             what the boot line costs a process
packing          slot time against its lower bound
stock_orders     the orders in which Miles splits a batch today
request_routing  what rollouts compute again, by the choice of a server
fleet            a model of servers that keep prefixes
table            a measurement as a table or as JSON
traces           seeded length distributions
"""

from __future__ import annotations

import typer

from miles_periodic.cli.bench.boot import boot_command
from miles_periodic.cli.bench.packing import packing_command
from miles_periodic.cli.bench.request_routing import routing_command

app = typer.Typer(no_args_is_help=True, help="Measure what the features and the layer cost.")
app.command("boot")(boot_command)
app.command("packing")(packing_command)
app.command("request-routing")(routing_command)
