"""What Ray would print into a run's output."""

import ray
from ray._private import worker

from quintet.jobs import on_ray


def test_messages_of_the_cluster_are_one_line_apart_from_results(monkeypatch, capsys):
    monkeypatch.setattr(worker, "print_to_stdstream", worker.print_to_stdstream)  # put back
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", lambda *_, **__: None)
    assert on_ray.connect("auto")
    hears = worker.listen_error_messages.__globals__  # of the thread that receives them
    message = {"lines": ["\x1b[33mRaylet is terminated.\x1b[0m\n  [state-dump]"], "is_err": False}
    hears["print_to_stdstream"](message | {"pid": "raylet"}, ignore_prefix=False)
    assert tuple(capsys.readouterr()) == ("", "ray: Raylet is terminated.\n")
