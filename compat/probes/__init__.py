"""What each feature finds in each upstream: native, inject or unsupported, with evidence.

table                       feature slug to upstream to probe
sightings                   the few AST shapes that probes look for
unknown                     the answer where something is not as it is known
delta_router_replay         who asks for new rows only, who serves them, who replays them
sessions                    how a session server asks for routes
kv_preservation             in-place pause, salts from the request to the radix key, the flush
decode_radix_cache          decode servers that keep prefixes, and who switches it on for them
request_routing             who chooses a server and a rank, and by what
cost_aware_packing          who splits a batch, who iterates over it
chunked_optimizer_offload   whether optimizer state is stepped in chunks
fused_linear_cross_entropy  who makes logits, who takes log-probabilities of them
chunked_checkpoint_staging  what a synchronous save copies before it writes
fast_resharding             who exports a model from what a run has trained
"""

from miles_periodic.compat.probes.table import PROBES, Probe

__all__ = ["PROBES", "Probe"]
