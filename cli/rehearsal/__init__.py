"""`miles --plugins periodic rehearse`: the whole loop on this machine's CPU, features off and on.

command       the options, and the order of the whole thing
workspace     a folder, a lock, and nothing left behind
one_run       one training run under the roll call, with progress
measurements  what the meter wrote, as numbers
packing       the slots of a run against their lower bound
result        both runs as one JSON value, with checks and verdict
summary       the result for a terminal
report        the result as one HTML file
"""
