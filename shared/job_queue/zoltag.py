"""`zoltag`, a demonstration of what a job can run: it prints what it was told, works for a while, and ends as asked.

python -m shared.job_queue.zoltag recompute-trained-tags --tenant-id=… [--provider-id=… --path-prefix=…] [--seconds=0.1] [--fail=true]
"""

from __future__ import annotations

import argparse
import sys
import time

COMMANDS = ("recompute-trained-tags", "recompute-zeroshot-tags", "train-keyword-models")


def main() -> int:
    parser = argparse.ArgumentParser(prog="zoltag", description="A demonstration command for jobs.", allow_abbrev=False)
    parser.add_argument("command", choices=COMMANDS)
    parser.add_argument("--tenant-id", required=True)
    parser.add_argument("--provider-id")
    parser.add_argument("--path-prefix", default="/")
    parser.add_argument("--model", default="siglip")
    parser.add_argument("--seconds", type=float, default=0.0)
    parser.add_argument("--fail", choices=("true", "false"), default="false")
    told = parser.parse_args()
    print(f"{told.command}: started for tenant {told.tenant_id}", flush=True)
    left = told.seconds
    while left > 0:
        time.sleep(min(left, 0.5))
        left -= 0.5
        print(f"{told.command}: {max(left, 0):.1f} s left", flush=True)
    if told.fail == "true":
        print(f"{told.command}: failed because --fail was set", file=sys.stderr, flush=True)
        return 1
    print(f"{told.command}: done", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
