"""Capacities: how many entries each layer and KV head selects."""
