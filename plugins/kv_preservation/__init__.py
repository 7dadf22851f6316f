"""KV preservation: weight updates in place, and a KV salt per weight version.

settings  what a user can set
sessions  one salt from two client keys, and answers by old weights
feature   the hooks
"""
