"""KV preservation: weight updates in place, and a KV salt per weight version.

settings  what a user can set
feature   the hooks
"""
