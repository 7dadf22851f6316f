"""The same features as codemods for a source checkout: for images, forks and pull requests.

Empty so far: no feature needs a patch set yet.
"""
