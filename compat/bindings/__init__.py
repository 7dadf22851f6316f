"""The adapters: each turns one upstream call into hook calls and back.

features         the features that are on in this process, as one pluggy manager
arguments        Miles's parsed command line
muster           the driver asks whether every expected binding is in place
rollout_scope    where one rollout begins and ends
rollout_request  the fields of a `/generate` request, and the proofs before the first one
routed_experts   the routes of a response, assembled before anybody decodes it
route_shape      the shape of one token's routes
per_token        the one place that cuts a sample
replay_fill      what a train rank replays: its own layers and positions, compact
server_routes    a delta of routes from servers that declare it and never read it
packing          who trains on what, and in which micro-batches
"""
