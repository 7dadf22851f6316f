"""What upstreams are doing about each feature.

rows     the ledger: pull requests and other changes that matter, as data (ledger/)
claims   whether what a row claims agrees with what releases show
github   what GitHub says of one number: conditional requests, limits honoured
refresh  all rows asked about
states   what was heard since the ledger was written: in the cache, or written into it

And what we would send them, as branches of their checkouts:

contributions  the changes, as data: steps, edits by structure, new files
edits          those edits, on LibCST
changed_files  what the steps make of a base's files
base           the commit of a checkout that is built upon, in a work tree of our own
style          the upstream's own formatters and linters
prepare        the commits, and the added tests run at each
description    a pull request's text, in the upstream's template
measurements   numbers for it, from docs/benchmarks.md or a result in JSON
"""
