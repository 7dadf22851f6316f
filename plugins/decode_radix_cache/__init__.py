"""Decode radix cache: only the suffix that a decode server does not hold crosses from prefill.

conflicts  what a decode server cannot have besides
proof      what a running decode server must show
settings   the slug, and what a user can set
feature    the hooks
"""
