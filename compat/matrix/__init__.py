"""Every feature against every release in range.

releases  which releases those are (releases.toml)
wheels    their sources, downloaded once into the user's cache
facts     what a release's sources say, and what was on file of it (facts/)
called    which bindings tests really call in which release (called.toml)
changes   what became of the targets of bindings from one tree to another
"""
