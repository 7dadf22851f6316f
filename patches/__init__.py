"""The same features as codemods for a source checkout: for images, forks and pull requests.

A patch set is made from its feature's bindings and not written by hand: at the end of each module
that holds a target it puts a binding point, which applies the very adapters that injection does.

headers      what each patch set is, as data (UPSTREAM/FEATURE/header.toml)
codemod      a binding point into a module and out again
states       applied, ready, in conflict, or not applicable
definitions  where a target is defined in a source file (LibCST)
checkout     a git checkout or another folder, and what was changed in it
rewriting    several files at once, all or none
export       the same as `git format-patch` files and a quilt series
"""
