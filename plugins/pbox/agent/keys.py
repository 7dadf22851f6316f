"""Where the application keeps its agent, and a request its job."""

from __future__ import annotations

from aiohttp import web

from miles_periodic.plugins.pbox.agent.agent import Agent

AGENT: web.AppKey[Agent] = web.AppKey("agent", Agent)
JOB = "job"
