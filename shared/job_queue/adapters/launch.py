"""Runs one command and stays beside it: when the worker is gone, however it died, the whole group is killed.

Started by the runner with the descriptor of a pipe whose other end only the worker has. Without this a command would live
on after a worker that was killed, while another worker runs the same job. It imports nothing of the product.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

NOT_FOUND = 127


def main() -> None:
    lifeline = int(sys.argv[1])
    # A handler, not SIG_IGN: what is ignored would be ignored by the command too.
    signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        command = subprocess.Popen(sys.argv[2:])
    except OSError as error:
        print(f"The command could not be started: {error.strerror}", file=sys.stderr, flush=True)
        os._exit(NOT_FOUND)

    def watch() -> None:
        os.read(lifeline, 1)  # returns when nobody holds the other end any more
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()
    code = command.wait()
    os._exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main()
