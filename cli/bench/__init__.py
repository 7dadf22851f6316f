"""`miles bench`: numbers, each measured by a command.

boot                what the boot line costs a process
checkpoint_staging  host memory and time of a save
decode_radix        bytes per turn from prefill to decode, with decode's cache and without
loss                memory and time of log-probabilities, with logits and without
live_bytes          the bytes of all tensors alive at once on a CPU, for that
offload             an optimizer step with its state in host memory against the link
offload_contest     what is stepped and timed for it
offload_megatron    the same under an unmodified Megatron, a process each
packing             slot time against its lower bound
sent_orders         the orders that are ready to be sent upstream
stock_orders        the orders in which Miles and Megatron split a batch today
pbox                what a sandbox costs
sandbox_times       those times beside their goals, and as pictures
plots               measured times as pictures
router_replay       bytes and CPU time of one turn's routes
route_server        the server's half of that, in a process of its own
request_routing     what rollouts compute again, by the choice of a server
fleet               a model of servers that keep prefixes
reshard             a conversion against copying the same bytes
torch_dist_writer   a checkpoint of many ranks, written by one process
table               a measurement as a table or as JSON
traces              seeded length distributions
"""

from __future__ import annotations

import typer

from miles_periodic.cli.bench.boot import boot_command
from miles_periodic.cli.bench.checkpoint_staging import checkpoint_staging_command
from miles_periodic.cli.bench.decode_radix import decode_radix_command
from miles_periodic.cli.bench.loss import loss_command
from miles_periodic.cli.bench.offload import offload_command
from miles_periodic.cli.bench.packing import packing_command
from miles_periodic.cli.bench.pbox import pbox_command
from miles_periodic.cli.bench.request_routing import routing_command
from miles_periodic.cli.bench.reshard import reshard_bench_command
from miles_periodic.cli.bench.router_replay import router_replay_command

app = typer.Typer(no_args_is_help=True, help="Measure what the features and the layer cost.")
app.command("boot")(boot_command)
app.command("checkpoint-staging")(checkpoint_staging_command)
app.command("decode-radix")(decode_radix_command)
app.command("loss")(loss_command)
app.command("offload")(offload_command)
app.command("packing")(packing_command)
app.command("pbox")(pbox_command)
app.command("request-routing")(routing_command)
app.command("reshard")(reshard_bench_command)
app.command("router-replay")(router_replay_command)
