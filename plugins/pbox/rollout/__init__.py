"""Sandboxes as the tools of a rollout.

box      the sandbox of the rollout that is being played
hosts    the agents of the job, one connection each for a whole process
tools    a shell and Python, as Miles's multi-turn rollouts call tools
agent    a loop of model and tools, as Miles's agentic rollouts call agents
"""
