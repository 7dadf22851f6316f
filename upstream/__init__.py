"""What upstream is doing about each feature.

ledger  the pull requests that matter: state, dates, first release, how to prove it (ledger.toml)
"""
