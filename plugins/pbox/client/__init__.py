"""The client of an agent.

host         a connection, and the sandboxes that live by it
control      that connection, in a thread of its own
box          one sandbox: commands and files
way          one request: its bound, its refusal, its failure
local_trees  folders of this machine
wire_errors  the agent's refusals as exceptions
blocking     all of it without an event loop
"""
