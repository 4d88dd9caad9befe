"""Nodes of a Ray cluster with the interface of this machine's sampler processes.

`nodes` is what the runtime sees, `peer` is one of them for it, and `node` runs on each.  Nodes are
found and checked by `quintet.jobs.roster`.
"""
