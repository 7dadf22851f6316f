"""Each process reports which bindings it really applied; a missing or failed one ends the run.

wire     the messages, one JSON object per line
member   the process's side: hello, applied, failed, consulted, and the watch over what was applied
roll     the launcher's record of who reported what, and what is missing
server   the launcher's side of the wire
absent   processes that never answered, found in the process table
roles    a process's title, and its role in a Miles run
"""
