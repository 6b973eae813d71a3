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
    case "exit":
        sys.exit(int(told["n"]))
    case (
        "escapes"
    ):  # another session, another parent, no output in common; then it ends, or hangs, once the number is told
        grandchild = (
            "import os,time\nready, tell = os.pipe()\n"
            "if os.fork(): os.read(ready, 1); os._exit(0)\n"
            "print(os.getpid(), flush=True)\nos.close(1)\nos.close(2)\nos.write(tell, b'.')\ntime.sleep(300)"
        )
        subprocess.run([sys.executable, "-c", grandchild], start_new_session=True, check=True)
        sys.stdout.flush()
        if told.get("n"):
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(60)
    case "one-line":
        sys.stdout.write("password=" + "s" * 3_000 + " " + "abcdefgh " * 30_000 + "the end")
    case "rebels":  # what has left the session goes on writing, and nobody is left to end it
        writes = (
            "import os, time\nend = time.time() + 3\nn = 0\nwhile time.time() < end:\n n += 1\n os.makedirs(f'{n}/{n}')"
        )
        subprocess.Popen(
            [sys.executable, "-c", f"try:\n exec({writes!r})\nexcept OSError: pass"],
            start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        time.sleep(0.3)
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(60)
    case "signal":
        os.kill(os.getpid(), signal.SIGSEGV)
