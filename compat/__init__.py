"""Everything that knows an upstream's shape.

tree            an upstream's sources, read by AST and never imported
fingerprints    signature and content of a target, and the shapes that are known (known_shapes/);
                fingerprint_command shows, records and checks them
follow          a field from its declaration to what consumes it; scopes, places, calls and uses
                are its parts: names and types, where a value is, what a call or statement does
server_traits   what a tree's servers refuse to start with, and what they return
probes/         per feature: native, inject or unsupported on a tree, with evidence
binding         where one hook spec meets one upstream symbol
bindings/       per feature: the adapters
apply           one binding onto one imported module, and the proof that it is still there
after_import    what waits in a process for a module to have executed
binding_point   what a patched module calls at its end, so that its bindings are put in
patched         what of a feature goes into a tree's sources, and what is there already
catalog/        the bindings that exist, and which of them a feature or a setting needs
conditions      whether a tree shows what a condition of the ledger asks for, and where
expiry          which bindings a tree no longer needs, by the ledger's own proof
drift           whether the targets of an injection look as they were known
session_support whether a feature reaches rollouts through Miles's session server
matrix/         every feature against every release in range
plan            feature x upstream to a decision, with the environment it was made for
decide          one feature on one upstream: its probe, its settings, the known shapes
environment     what else decides: Python, torch, devices, Ray, runsc, Slurm
manifest        the plan as every process of a run receives it
boot            what the .pth line starts in a process of a run
server_roles    which roles a run's servers can have, by its command line
run_processes   the processes of a run on this node, found and ended
roll_call/      what each process really did, told to the launcher
meter           what a rehearsal sent, reused and trained on, written down
deferred_logits what a model returns in place of logits
tool_rollouts   Miles's rollouts with tools, where what they run in may fail
train           the training entry for the miles-rl wheel, which ships none
bench/          a real Megatron's half of `miles bench`
cpu/            stand-ins that let the stack run without a GPU
"""
