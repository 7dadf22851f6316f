"""The adapters: each turns one upstream call into hook calls and back.

features         the features that are on in this process, as one pluggy manager
arguments        Miles's parsed command line
server_groups    the groups of a run's servers, and the arguments that features set on them
running_server   a server that came up, looked at by the features
unpaired         requests that would end a decode server
muster           the driver asks whether every expected binding is in place
rollout_scope    where one rollout begins and ends
rollout_request  the fields of a `/generate` request, and the proofs before the first one
rollout_pairs    requests for routes, sent to both servers of a prefill/decode pair
routed_experts   the routes of a response, and their dtype in the trainer
server_routes    a delta of routes from servers that declare it and never read it
packing          who trains on what, and in which micro-batches
"""
