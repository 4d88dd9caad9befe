"""Nodes of a Ray cluster with the interface of this machine's sampler processes.

`nodes` is what the runtime sees, `gate` lets nodes in, `node` runs on each of them; `on_ray` finds
them and is the only module that imports ray.
"""
