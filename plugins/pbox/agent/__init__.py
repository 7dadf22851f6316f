"""The agent of a node: `miles pbox agent`.

settings  what it is told
tokens    the jobs that it knows
leases    what lives by one control connection
agent     sandboxes, pools and leases
server    HTTP: who asks, and what for
keys      where the server keeps things
commands  commands as streams
files     files and trees as streams
metrics   counts for Prometheus
"""
