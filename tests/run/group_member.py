"""A member of a group for `test_seed_group`: quick to start, does what its payload says."""

import hashlib
import json
import os
import signal
import sys
import time
from pathlib import Path

from quintet.run import seed_group

if "--die" in os.environ.get("MEMBER", ""):
    sys.exit(7)


def main() -> int:
    payload = seed_group.attach()
    given = json.loads(payload.split(b"\0")[0])
    place = Path(given["place"])
    print(f"hello\nsum {hashlib.sha256(payload).hexdigest()[:8]}", flush=True)
    print("to stderr", file=sys.stderr)
    if given.get("stubborn"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    elif given.get("orderly"):

        def stop(*_):
            (place / f"stopped-{os.getpid()}").touch()
            seed_group.answer(int(sys.argv[1]), {"stopped": True})
            os._exit(130)

        signal.signal(signal.SIGTERM, stop)
    (place / f"running-{os.getpid()}").touch()
    time.sleep(given.get("seconds", 0))
    (place / f"running-{os.getpid()}").unlink()
    if "status" in given:
        return given["status"]
    seed_group.answer(int(sys.argv[1]), {"said": given})
    return 0


if __name__ == "__main__":
    sys.exit(main())
