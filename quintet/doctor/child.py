"""The process in which an environment is examined, since it may hang, crash or end its process.

It writes a line of JSON for each stage that begins, and for the findings after each.
"""

import os
import pickle
import sys
import threading
import traceback
from typing import Any

from quintet.jobs import work


def main() -> int:
    """Examines by the payload; returns 0, 1 if the environment failed, 2 for wrong options."""
    payload, tell = work.receive()
    request = pickle.loads(payload)

    from quintet.doctor import environment
    from quintet.errors import ConfigError, QuintetError
    from quintet.system.user_code import raised

    _watch(request["deadline_s"], tell)
    stage = "making it"
    tell({"stage": stage})

    def begun(name: str) -> None:
        nonlocal stage
        stage = name
        tell({"stage": name})

    try:
        source = None
        if request["source"] is not None:
            source = pickle.loads(request["source"])
        loaded = environment.load(request["algo"], request["words"], source)
        options = environment.options_of(loaded, request["typed"])
        for seen, found in environment.examine(
            loaded, options, request["seed"], request["seconds"], begun
        ):
            step_s = None if seen.check is None else seen.check.step_s
            found_so_far = [each.as_json() for each in found]
            tell({"found": found_so_far, "unmade": seen.unmade, "step_s": step_s})
    except ConfigError as error:
        tell({"error": str(error)})
        return 2
    except QuintetError as error:
        tell({"failed": str(error)})
        return 1
    except Exception as error:
        tell({"failed": f"it {raised(error)}"})
        return 1
    tell({"done": True})
    return 0


def _watch(deadline_s: float, tell: Any) -> None:
    """Ends the process at the deadline, and reports the line where it hangs."""
    thread = threading.get_ident()

    def end() -> None:
        from quintet.system.user_code import place_in

        frame = sys._current_frames().get(thread)
        tell({"hangs": place_in(traceback.extract_stack(frame))})
        os._exit(3)

    timer = threading.Timer(deadline_s, end)
    timer.daemon = True
    timer.start()
