"""The upstream's half of `miles bench`: what a real Megatron does, run and measured.

optimizer_step    an optimizer of it, stepped and timed in a process of its own
checkpoint_saves  saves of it, measured in a process of its own
cross_entropy     its cross entropy, to compare log-probabilities with
"""
