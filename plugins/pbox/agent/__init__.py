"""The agent of a node: `miles pbox agent`.

settings  what it is told
tokens    the jobs that it knows
leases    what lives by one control connection
agent     sandboxes, pools and leases
certificates  what it shows to clients over TCP
server    HTTP: who asks, and what for
keys      where the server keeps things
commands  commands as streams
files     files and trees as streams
handover  files as open files, on the same machine
refusals  errors as JSON
metrics   counts for Prometheus
"""
