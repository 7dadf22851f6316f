"""`miles --plugins periodic rehearse`: the whole loop on this machine's CPU, features off and on.

command, environment_check, workspace, progress
    the options and the order of things; what must be there; a folder, a lock, nothing left behind
sandboxes
    what the rollouts' tools run in, or why in nothing
one_run
    one training run under the roll call, ended on every exit
measurements, packing, assemble
    what the meter wrote, as numbers; both runs as one JSON value with checks and verdict
result, quantities, json_words, findings
    that value read back; numbers and words for people; honest sentences
report, sections, sections_plan, style
    the HTML page
charts, charts_traffic, charts_packing, charts_time, charts_processes
    its pictures
summary
    the same facts for a terminal
"""
