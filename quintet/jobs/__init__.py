"""Work that is given to another process: a `Job` is started at a place, heard, and ended.

A place is this machine (`local`), or the nodes of a Ray cluster (`cluster_place`), which `roster`
has checked; `group` runs several jobs, and `silence` decides that a process hangs.
"""
