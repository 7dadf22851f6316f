"""Measurements that a user can repeat; each prints a table and compares within one run.

packing       slot times of stock orders and of cost-aware packing against the proved bound
stock_orders  the orders that trainers use without a cost model
traces        seeded lengths of samples
"""
