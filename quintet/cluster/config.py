"""Options of a run on a cluster."""

from typing import TYPE_CHECKING, final

from quintet.errors import ConfigError
from quintet.options.bounds import LongWait, Tasks
from quintet.options.declaration import Options, option

if TYPE_CHECKING:
    from quintet.jobs.roster import Terms


def no_ray(address: str | None, error: ImportError) -> ConfigError:
    """The error for a machine without Ray."""
    return ConfigError(
        f"cluster.address={address} needs Ray, which is not installed ({error}): "
        "pip install 'quintet-rl[cluster]', or leave it out"
    )


@final
class ClusterConfig(Options):
    """Options of the nodes on which workers run."""

    address: str | None = option(
        None,
        pattern=r"^(auto|[^\s:/]+:\d{1,5})$",
        needs="runtime.kind=lockstep or runtime.kind=async",
        on_resume="free",
    )
    """Ray cluster on whose nodes the workers run, or the runs of a group (--seeds); auto: the
    cluster that this machine is part of; HOST:PORT: the cluster with this address, of which this
    machine must be part; none: workers run on this machine
    """
    nodes_min: Tasks = option(1, needs="cluster.address", at_most="nodes_max", on_resume="free")
    """least number of nodes with which the run begins and continues"""
    nodes_max: Tasks | None = option(None, needs="cluster.address", on_resume="free")
    """largest number of nodes that the run uses; none: all of the cluster; the default of
    runtime.num_workers is this number times the cores of this machine
    """
    wait_s: LongWait = option(60.0, needs="cluster.address", on_resume="free")
    """seconds that a run waits for cluster.nodes_min nodes before it ends with an error"""
    node_timeout_s: LongWait = option(30.0, needs="cluster.address", on_resume="free")
    """seconds after which a node that sends nothing counts as lost; nodes send something every
    second
    """

    @property
    def terms(self) -> "Terms":
        """The same for the jobs on nodes; raises ImportError without Ray."""
        from quintet.jobs.roster import Terms

        assert self.address is not None
        limits = self.nodes_min, self.nodes_max, self.wait_s, self.node_timeout_s
        return Terms(self.address, *limits)
