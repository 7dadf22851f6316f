"""What upstreams are doing about each feature.

rows     the ledger: pull requests and other changes that matter, as data (ledger/)
claims   whether what a row claims agrees with what releases show
github   what GitHub says of one number: conditional requests, limits honoured
refresh  all rows asked about
states   what was heard since the ledger was written: in the cache, or written into it
"""
