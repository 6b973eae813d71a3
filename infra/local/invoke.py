"""Guards that a function can be called with an event on this machine: a fresh process, the deployed environment, no Docker."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from infra.local.deploy import ROOT
from infra.local.ministack import INHERITED, credentials
from shared.kernel.aws import DEFAULT_REGION
from shared.kernel.clock import new_id


class InvokeError(RuntimeError):
    """The function failed or ran out of time; the message says which."""


def invoke(configuration: Mapping[str, Any], endpoint: str, access_key: str, event: str) -> str:
    """The function's answer to an event (both JSON), by the code of this folder; its log goes to standard error."""
    name, timeout_s = configuration["FunctionName"], int(configuration["Timeout"])
    here = {name: os.environ[name] for name in INHERITED if name in os.environ}
    deployed = configuration.get("Environment", {}).get("Variables", {})
    lambdas = {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_REGION": DEFAULT_REGION,
        "AWS_DEFAULT_REGION": DEFAULT_REGION,
        **credentials(access_key),
        "AWS_LAMBDA_FUNCTION_NAME": name,
        "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": str(configuration.get("MemorySize", 128)),
    }
    command = [sys.executable, "-m", "infra.local.invoke", configuration["Handler"], str(timeout_s)]
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env={**here, **deployed, **lambdas},
            input=event.encode(),
            stdout=subprocess.PIPE,
            timeout=timeout_s + 10,  # and the import, which Lambda does not count either
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise InvokeError(f"{name} timed out after {timeout_s} s") from None
    if done.returncode != 0:
        raise InvokeError(f"{name} failed; its last output is above")
    return done.stdout.decode()


@dataclass
class Context:
    """What Lambda tells a function about its invocation."""

    function_name: str
    memory_limit_in_mb: int
    timeout_s: float
    invoked_function_arn: str = ""
    aws_request_id: str = field(default_factory=lambda: str(new_id()))
    tenant_id: str | None = None
    began: float = field(default_factory=time.monotonic)

    def get_remaining_time_in_millis(self) -> int:
        return max(0, int((self.began + self.timeout_s - time.monotonic()) * 1000))


def main(handler: str, timeout_s: str) -> None:
    module, _, name = handler.rpartition(".")
    answers, sys.stdout = sys.stdout, sys.stderr  # what the function prints is its log
    call = getattr(importlib.import_module(module), name)
    context = Context(
        os.environ["AWS_LAMBDA_FUNCTION_NAME"], int(os.environ["AWS_LAMBDA_FUNCTION_MEMORY_SIZE"]), float(timeout_s)
    )
    answers.write(json.dumps(call(json.load(sys.stdin), context)))


if __name__ == "__main__":
    main(*sys.argv[1:])
