"""KV preservation: weight updates in place, and a KV salt per weight version.

settings    the slug, and what a user can set
runs        which runs can keep KV over a weight update, and what stands against the others
kv_record   under which weights the KV of a prefix was computed
accounting  tokens reused, computed again and stale, from what the servers answer
staleness   how many weight versions a rollout is behind, and when that is too many
sessions    one salt from two client keys, and answers by old weights
feature     the hooks
"""
