"""Request routing: every turn of a rollout to the server, and the rank, that holds its prefix.

settings      the slug, and what a user can set
sticky        typed routing keys, and the rank and the tie that they decide
prefix_index  which prefixes each server is expected to hold
turns         where the last turn of each rollout went, and how long it was
scoring       which server is worth the most to a request
feature       the hooks
"""
