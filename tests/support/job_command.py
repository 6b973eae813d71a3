"""A command for tests: does what --what says."""

import os
import signal
import subprocess
import sys
import time

told = dict(word[2:].split("=", 1) for word in sys.argv[1:])
match told.get("what", "ok"):
    case "ok":
        print("fine")
    case "fail":
        print("no such folder", file=sys.stderr)
        sys.exit(3)
    case "nul":
        sys.stdout.buffer.write(b"before\x00after\xff\n")
    case "flood":
        for n in range(20_000):
            print(f"line {n}")
    case "secret":
        print("password=hunter2-canary")
        print("Authorization: Bearer canary.canary.canary", file=sys.stderr)
        sys.exit(1)
    case "env":
        print(sorted(os.environ))
    case "argv":
        print(sys.argv[1:])
    case "sleep":
        print("sleeping", flush=True)
        time.sleep(60)
    case "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        child = subprocess.Popen(
            [sys.executable, "-c", "import signal,time; signal.signal(15, signal.SIG_IGN); time.sleep(60)"]
        )
        print(child.pid, flush=True)
        time.sleep(60)
    case "leaves":
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        print(child.pid, flush=True)
    case "signal":
        os.kill(os.getpid(), signal.SIGSEGV)
