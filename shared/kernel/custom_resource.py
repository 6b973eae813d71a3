"""A custom resource of CloudFormation: it waits for an answer at a URL, and must get one whatever happens."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import orjson
import urllib3

from shared.kernel.entry import Answer, Context, Event, Handler
from shared.kernel.log import logger
from shared.kernel.log_json import logged
from shared.kernel.redact import redact

ANSWERING_S = 30.0  # left of the function's time to tell CloudFormation
LONGEST_REASON = 1_000  # CloudFormation takes 4 KB for the whole answer
ANSWERING = urllib3.Retry(total=4, backoff_factor=0.5, status_forcelist=(500, 502, 503, 504), allowed_methods={"PUT"})


def custom_resource_handler(work: Callable[[float], Mapping[str, str]]) -> Handler:
    """Does `work` when the stack is created or moves forward, and tells CloudFormation how it went. It is told how many
    seconds it has: what takes longer must fail before the function ends, or CloudFormation waits for nothing.

    A deletion and a step back (the property Head goes down, as in a rollback) do nothing and succeed: a stack must
    always be able to leave. Without a ResponseURL somebody called by hand: then the result is the answer, or it raises.
    """

    def handler(event: Event, context: Context) -> Answer:
        by_hand = "ResponseURL" not in event
        try:
            within_s = max(1.0, context.get_remaining_time_in_millis() / 1000 - ANSWERING_S)
            data = {} if _goes_back(event) else dict(work(within_s))
        except Exception as error:
            if by_hand:
                raise
            logger.exception("the work of a deployment failed")
            reason = redact(f"{type(error).__name__}: {error}")[:LONGEST_REASON]
            log = os.environ.get("AWS_LAMBDA_LOG_GROUP_NAME", "the function's log")
            return _answer(event, {"Status": "FAILED", "Reason": f"{reason} (see {log})"})
        return {"Data": data} if by_hand else _answer(event, {"Status": "SUCCESS", "Data": data})

    return logged(handler)


def _goes_back(event: Event) -> bool:
    if event.get("RequestType") != "Update":
        return event.get("RequestType") == "Delete"
    now, before = (event.get(name, {}).get("Head", "") for name in ("ResourceProperties", "OldResourceProperties"))
    return str(now) < str(before)


def _answer(event: Event, said: dict[str, Any]) -> Answer:
    told = {name: event[name] for name in ("StackId", "RequestId", "LogicalResourceId")}
    # The same id for ever: another one would make CloudFormation delete "the old" resource.
    answer = {**told, "PhysicalResourceId": event.get("PhysicalResourceId") or told["LogicalResourceId"], **said}
    headers = {"Content-Type": ""}  # the URL is signed for an empty one
    with urllib3.PoolManager(timeout=urllib3.Timeout(connect=5, read=10), retries=ANSWERING) as pool:
        sent = pool.request("PUT", event["ResponseURL"], body=orjson.dumps(answer), headers=headers)
    if sent.status >= 300:
        raise RuntimeError(f"CloudFormation did not take the answer: {sent.status}")
    logger.info("CloudFormation was told", extra={"status": answer["Status"]})
    return answer
