"""The same features as codemods for a source checkout: for images, forks and pull requests.

edits    edits of a source file by its structure (LibCST)
"""
