"""`miles upstream`: what upstreams are doing about our features.

verify   prove the ledger's claims on the sources of releases
"""
