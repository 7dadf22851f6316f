"""What upstreams are doing about each feature.

rows     the ledger: pull requests and other changes that matter, as data (ledger/)
claims   whether what a row claims agrees with what releases show
"""
