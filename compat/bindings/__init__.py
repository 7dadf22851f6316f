"""The adapters: each turns one upstream call into hook calls and back.

features            the features that are on in this process, as one pluggy manager

arguments           Miles's parsed command line
muster              the driver asks whether every expected binding is in place
server_groups       the groups of a run's servers, and the arguments that features set on them
running_server      a server that came up, looked at by the features

rollout_scope       where one rollout begins and ends
generate_post       which calls of Miles's client are `/generate` requests
rollout_request     the fields of a `/generate` request, and the proofs before the first one
rollout_pairs       requests for routes, sent to both servers of a prefill/decode pair
routed_experts      the routes of a response, assembled before anybody decodes it
route_shape         the shape of one token's routes
per_token           the one place that cuts a sample
rollout_flight      a rollout until it is trained on, and what is on record of its start
rollout_traffic     a rollout's requests and what servers answer
rollout_step        a step's numbers, and the last word on its samples
cancellation        rollouts that are ended on the servers and kept out of training
weight_versions     the newest weight version that a server reported
weight_update       updates that leave the servers' KV alone

session_chat        a chat request through the session server of Miles 0.0.2
session_core        a chat request through the session server of Miles main
session_turn        the turn of a session that is under way
session_facts       what must be known of the servers before a session's first request
session_samples     from a session's records to samples

routing_keys        keys and ranks on requests that Miles sends without
router              which server of Miles's Python router takes a request
router_wire         what a request and its response say about routing
server_watch        what the router's servers report of themselves

server_routes       a delta of routes from servers that declare it and never read it
server_capture      the routes of one forward, before they reach the host buffer
server_retraction   the rows that a retracted request was sampled with
server_mixed_batch  requests with and without routes in one output batch
server_wire         a finished request's routes in the form that features choose
unpaired            requests that would end a decode server

packing             who trains on what, and in which micro-batches, in Miles 0.0.2
packing_schedule    the same in Miles main, which plans both in one place
packing_megatron    the same in Megatron's own training loop
replay_fill         what a train rank replays: its own layers and positions, compact

optimizer_state     masters of a distributed optimizer, handed out from host memory
offloaded_weights   the weights that an offloaded optimizer writes, and what it cannot have
copied_state        host memory that the next step overwrites, copied for a checkpoint

output_logits       a model that returns what its logits would be made of
log_probs           Miles's log-probabilities and entropies, computed from that

checkpoint_save     a synchronous save, from its strategy to the function that writes
staged_write        one rank's share of a checkpoint, wave by wave
staging_memory      host memory for the copies of one wave
checkpoint_export   a model in Hugging Face's form of a checkpoint that was just saved
"""
