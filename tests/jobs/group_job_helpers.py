"""A job for `test_group`: quick to start, does what its payload says."""

import hashlib
import json
import os
import signal
import sys
import time
from pathlib import Path

from quintet.jobs import work

if "--die" in os.environ.get("JOB", ""):
    sys.exit(7)


def main() -> int:
    payload, tell = work.receive(orderly=True)
    given = json.loads(payload.split(b"\0")[0])
    place = Path(given["place"])
    print(f"hello\nsum {hashlib.sha256(payload).hexdigest()[:8]}", flush=True)
    print("to stderr", file=sys.stderr)
    bytearray(given.get("mib", 0) * 2**20)
    if given.get("stubborn"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    elif given.get("orderly"):

        def stop(*_):
            (place / f"stopped-{os.getpid()}").touch()
            tell({"stopped": True})
            os._exit(130)

        signal.signal(signal.SIGTERM, stop)
    (place / f"running-{os.getpid()}").touch()
    if given.get("closes"):
        os.closerange(3, 4096)
    time.sleep(given.get("seconds", 0))
    (place / f"running-{os.getpid()}").unlink()
    if "status" in given:
        return given["status"]
    if given.get("twice"):
        tell({"said": "first", "other": 1})
        tell({"said": "second"})
        return 0
    tell({"said": given})
    return 0


if __name__ == "__main__":
    sys.exit(main())
