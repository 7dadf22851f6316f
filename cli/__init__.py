"""The entrance: `periodic`, and its alias `miles`.

main          the command line, and a script's name as a command
commands      the subcommands, imported when they are needed
process_name  the name in the process table, before anything else happens
messages      what is said on standard error
interrupts    commands that are ended from outside
whole_file    files that a command leaves, written whole or not at all
markup        HTML and SVG as values
options       the options that select plugins and settings
selected      options to features, settings and plan
launch        one run: plan, roll call, child process, verdict
plan          `miles plan`
reshard       `miles reshard`
rehearsal/    `miles rehearse`
bench/        `miles bench`
pbox/         `miles pbox`
compat/       `miles compat`: every feature on every release
patches/      `miles patches`: features as codemods for a checkout
upstream/     `miles upstream`: the ledger
"""
