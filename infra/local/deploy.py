"""Guards that what runs locally is the very template.yaml that goes to AWS: zipped, uploaded, and deployed as a change set."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import json
import marshal
import time
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from botocore.exceptions import ClientError

from infra.sam.artifact import shipped
from shared.kernel import aws

ROOT = Path(__file__).resolve().parents[2]
TEMPLATE = ROOT / "template.yaml"
STAGE = "local"
STACK = f"baton-{STAGE}"
ARTIFACTS = f"baton-{STAGE}-artifacts"
API_ID = "ba701ca1"
DIGEST_TAG = "baton:digest"
SECONDS = 120
A_MOMENT_S = 0.1
SAY_EVERY_S = 2.0


class DeployError(RuntimeError):
    """The template could not be deployed; the message says which resource refused and why."""


@dataclass(frozen=True, slots=True)
class Deployed:
    """`changed` is False when the stack already was what the folder says."""

    outputs: Mapping[str, str]
    changed: bool
    seconds: float


def deploy(
    endpoint: str,
    access_key: str,
    parameters: Mapping[str, str],
    *,
    root: Path = ROOT,
    say: Callable[[str], None] = lambda _: None,
) -> Deployed:
    """Make the stack at `endpoint` what `root` says it is. Nothing happens when it already is."""
    began = time.monotonic()
    cloudformation = aws.client("cloudformation", endpoint=endpoint, access_key=access_key, read_s=60)
    sources, template = fingerprint(root), _template(root)
    digest = hashlib.sha256(
        sources.encode() + template.encode() + json.dumps(dict(parameters), sort_keys=True).encode()
    )
    found = _stack(cloudformation)
    if found is not None and _tag(found) == digest.hexdigest() and found["StackStatus"].endswith("_COMPLETE"):
        return Deployed(_outputs(found), changed=False, seconds=time.monotonic() - began)
    if found is not None and "ROLLBACK" in found["StackStatus"]:
        delete(endpoint, access_key)
        found = None
    key, code = f"{sources}.zip", package(root)
    # A body of over 51,200 characters is refused, so the template goes the way of the code.
    place = f"{digest.hexdigest()}.json"
    _upload(endpoint, access_key, {key: code, place: _with_code(template, f"s3://{ARTIFACTS}/{key}").encode()})
    _change(
        cloudformation,
        f"{endpoint}/{ARTIFACTS}/{place}",
        parameters,
        digest.hexdigest(),
        "CREATE" if found is None else "UPDATE",
    )
    stack = _settled(cloudformation, say)
    return Deployed(_outputs(stack), changed=True, seconds=time.monotonic() - began)


def delete(endpoint: str, access_key: str) -> None:
    cloudformation = aws.client("cloudformation", endpoint=endpoint, access_key=access_key, read_s=60)
    cloudformation.delete_stack(StackName=STACK)
    _wait(lambda: _stack(cloudformation) is None, "the stack is not gone")


def fingerprint(root: Path = ROOT) -> str:
    """Of what is shipped, by its sources: bytecode may differ between two processes, as a set of strings has no order."""
    digest = hashlib.sha256()
    for name in shipped(root):
        digest.update(f"{name}\n".encode() + hashlib.sha256((root / name).read_bytes()).digest())
    return digest.hexdigest()


def package(root: Path = ROOT) -> bytes:
    """The code as one zip; dependencies come from the environment around it."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in shipped(root):
            _add(archive, str(name), (root / name).read_bytes())
            if name.suffix == ".py":
                _add(archive, *_bytecode(name, root / name))
    return buffer.getvalue()


def _add(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    entry = zipfile.ZipInfo(name)  # its time is 1980, always
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.external_attr = 0o644 << 16
    archive.writestr(entry, content)


def _bytecode(name: Path, path: Path) -> tuple[str, bytes]:
    """A cold start that need not compile: the functions run on this very interpreter."""
    source = path.read_bytes()
    code = marshal.dumps(compile(source, str(name), "exec", dont_inherit=True))
    unchecked = (1).to_bytes(4, "little")  # a zip file changes every time stamp
    content = importlib.util.MAGIC_NUMBER + unchecked + importlib.util.source_hash(source) + code
    return importlib.util.cache_from_source(str(name)), content


def _template(root: Path) -> str:
    try:
        return (root / TEMPLATE.name).read_text()
    except FileNotFoundError:
        raise DeployError(f"there is no {TEMPLATE.name} in {root}") from None


def _with_code(template: str, uri: str) -> str:
    """The template with the code's place in it, as `sam package` does, and an API whose address is the same after every start."""
    from samtranslator.yaml_helper import yaml_parse  # noqa: PLC0415 - slow, and mostly nothing has changed

    document = yaml_parse(template)
    document.get("Globals", {}).get("Function", {}).pop("CodeUri", None)
    for resource in document["Resources"].values():
        if isinstance(resource, dict) and resource["Type"] == "AWS::Serverless::Function":  # a loop is a list
            resource["Properties"]["CodeUri"] = uri
        elif isinstance(resource, dict) and resource["Type"] == "AWS::ApiGatewayV2::Api":
            resource["Properties"].setdefault("Tags", {})["ms-custom-id"] = API_ID
    return json.dumps(document, default=str)


def _upload(endpoint: str, access_key: str, files: Mapping[str, bytes]) -> None:
    s3 = aws.client("s3", endpoint=endpoint, access_key=access_key)
    s3.create_bucket(Bucket=ARTIFACTS)
    for key, content in files.items():
        s3.put_object(Bucket=ARTIFACTS, Key=key, Body=content)


def _change(client: Any, template_url: str, parameters: Mapping[str, str], digest: str, kind: str) -> None:
    name = f"baton-{digest[:32]}-{time.monotonic_ns()}"
    client.create_change_set(
        StackName=STACK,
        ChangeSetName=name,
        ChangeSetType=kind,
        TemplateURL=template_url,
        Parameters=[{"ParameterKey": key, "ParameterValue": value} for key, value in parameters.items()],
        Capabilities=["CAPABILITY_IAM", "CAPABILITY_NAMED_IAM", "CAPABILITY_AUTO_EXPAND"],
        Tags=[{"Key": DIGEST_TAG, "Value": digest}],
    )
    change = _wait(lambda: _made(client, name), "the change set is not made")
    if change["Status"] == "FAILED":
        raise DeployError(f"template.yaml was refused: {change.get('StatusReason', 'no reason was given')}")
    client.execute_change_set(StackName=STACK, ChangeSetName=name)


def _made(client: Any, name: str) -> Any:
    change = client.describe_change_set(StackName=STACK, ChangeSetName=name)
    return change if change["Status"] in ("CREATE_COMPLETE", "FAILED") else None


def _settled(client: Any, say: Callable[[str], None]) -> dict[str, Any]:
    next_word = time.monotonic() + SAY_EVERY_S

    def settled() -> dict[str, Any] | None:
        nonlocal next_word
        stack = _stack(client)
        if stack is not None and not stack["StackStatus"].endswith("_IN_PROGRESS"):
            return stack
        if time.monotonic() > next_word:
            next_word = time.monotonic() + SAY_EVERY_S
            made = client.describe_stack_resources(StackName=STACK)["StackResources"]
            say(f"             {sum(r['ResourceStatus'].endswith('_COMPLETE') for r in made)} resources are there")
        return None

    stack = _wait(settled, "the stack is still being made")
    if stack["StackStatus"] not in ("CREATE_COMPLETE", "UPDATE_COMPLETE"):
        raise DeployError(f"the stack is {stack['StackStatus']}:\n{_reasons(client)}")
    return dict(stack)


def _wait(look: Callable[[], Any], problem: str) -> Any:
    deadline = time.monotonic() + SECONDS
    while not (seen := look()):
        if time.monotonic() > deadline:
            raise DeployError(f"{problem} after {SECONDS} seconds; `baton logs` may say why")
        time.sleep(A_MOMENT_S)
    return seen


def _stack(client: Any) -> dict[str, Any] | None:
    try:
        (stack,) = client.describe_stacks(StackName=STACK)["Stacks"]
    except ClientError as error:
        if error.response["Error"]["Code"] == "ValidationError":  # CloudFormation's word for "no such stack"
            return None
        raise
    return None if stack["StackStatus"] in ("DELETE_COMPLETE", "REVIEW_IN_PROGRESS") else dict(stack)


def _reasons(client: Any) -> str:
    events = client.describe_stack_events(StackName=STACK)["StackEvents"]
    failed = [event for event in events if "FAILED" in event.get("ResourceStatus", "")]
    said = [f"  {event['LogicalResourceId']}: {event.get('ResourceStatusReason', '')}" for event in failed]
    return "\n".join(reversed(said)) or "  no resource says why"


def _tag(stack: Mapping[str, Any]) -> str | None:
    return next((tag["Value"] for tag in stack.get("Tags", []) if tag["Key"] == DIGEST_TAG), None)


def _outputs(stack: Mapping[str, Any]) -> dict[str, str]:
    return {output["OutputKey"]: output["OutputValue"] for output in stack.get("Outputs", [])}
