"""The rules that template.yaml must keep, each as a function that answers what breaks it. No emulator shows any of these."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatch
from typing import Any

from infra.migrations.head import newest_revision
from shared.kernel.api.console import CONSOLE
from shared.kernel.api.frame import DOCS, MACHINES
from shared.kernel.metrics import Metric
from tests.support.template import ROOT, Node, Values, functions, mappings, of_type, stages
from tests.support.variables import read_variables

Rule = Callable[[Node], list[str]]

# What is pulled has no queue: its batons are offered in Postgres.
KINDS = sorted(
    path.parent.name for path in (ROOT / "shared").glob("*/steps.py") if 'delivery="pull"' not in path.read_text()
)

# Where a star may stand in what is allowed, and why. Anything else is a finding.
STARS: Mapping[tuple[str, str], str] = {
    (
        "VpcPolicy",
        "ec2:*NetworkInterface*",
    ): "EC2 knows no narrower resource; the code itself is denied the same actions",
    ("VpcPolicy", "ec2:DescribeSubnets"): "as above",
    ("VpcPolicy", "ec2:*PrivateIpAddresses"): "as above",
    (
        "SendBatonsPolicy",
        "sqs:SendMessage*",
    ): "one action in AWS; MiniStack has a second name for it. Its queues are named one by one",
    ("*Role", "logs:*"): "the streams of the function's own log group",
    ("TracePolicy", "xray:Put*"): "X-Ray knows no narrower resource",
    ("ApiRole", "secretsmanager:*Secret*"): "the secrets of connections, which tenants make; under their prefix only",
    ("ReadConnectionsPolicy", "secretsmanager:GetSecretValue"): "as above, to read",
    (
        "PageIngestRole",
        "secretsmanager:PutSecretValue",
    ): "as above, to keep a refresh token that its upstream has changed",
    ("QueryRunRole", "s3:*Object"): "the files of its own results, of whichever tenant; S3 knows no narrower resource",
    (
        "ApiRole",
        "s3:GetObject*",
    ): "files that go out, to sign links to them; uploads of row jobs, to show how they are read",
    ("ApiRole", "s3:PutObject"): "what it signs for a browser: one upload of a row job under its tenant",
    (
        "RowJobRole",
        "s3:GetObject*",
    ): "uploads of whichever tenant, at the version that arrived; files that wait to be scanned",
    ("RowJobRole", "s3:PutObject"): "files that a scan takes become uploads, of whichever tenant",
    ("RowJobRole", "s3:ListMultipartUploadParts"): "the same, in parts",
    ("RowJobRole", "s3:DeleteObject"): "exports of a job that is deleted, of whichever tenant",
}

# A wake names a queue, and the tick sends another: one that nobody takes within the hour is worth nothing.
WAKES = {"JobQueue"}

# What is read by somebody else's code.
READ_BY_OTHERS = {"LOG_LEVEL": "Powertools"}

# What every Postgres keeps for its superuser.
FOR_THE_SUPERUSER = 3


def every_stage(template: Node) -> Iterator[tuple[str, Values]]:
    yield "defaults", Values(template, {})
    for name, given in stages().items():
        yield name, Values(template, given)


def statements(template: Node) -> Iterator[tuple[str, Node]]:
    """Every statement of a role or a managed policy, with the id of what holds it."""
    for name, role in of_type(template, "AWS::IAM::Role").items():
        for policy in role.get("Policies", []):
            yield from _plain(name, policy)
    for name, policy in of_type(template, "AWS::IAM::ManagedPolicy").items():
        yield from _plain(name, policy)


def _plain(name: str, policy: Node) -> Iterator[tuple[str, Node]]:
    """The statements of a policy, also those under a condition."""
    for each in policy["PolicyDocument"]["Statement"]:
        yield from ((name, part) for part in each.get("Fn::If", [each]) if isinstance(part, dict) and "Effect" in part)


def held_by(template: Node, role: str) -> list[Node]:
    """Every statement that a role has: its own, and those of the policies that are attached to it."""
    attached = set(_references(template["Resources"][role]["Properties"].get("ManagedPolicyArns", [])))
    return [statement for holder, statement in statements(template) if holder == role or holder in attached]


def _references(node: Any) -> Iterator[str]:
    match node:
        case {"Ref": str(name)}:
            yield name
        case dict() | list():
            for each in node.values() if isinstance(node, dict) else node:
                yield from _references(each)


def role_of(function: Node) -> str:
    return str(function["Role"]["Fn::GetAtt"][0])


def actions(statement: Node) -> list[str]:
    found = statement["Action"]
    return [found] if isinstance(found, str) else list(found)


def a_function_that_takes_and_sends_may_go_round(template: Node) -> list[str]:
    """Lambda stops a chain of messages after 16 hops, unless the function says that it means it."""
    senders = {
        name
        for name in of_type(template, "AWS::IAM::Role")
        if any(a.startswith("sqs:SendMessage") for each in held_by(template, name) for a in actions(each))
    }
    takers = {name for name, *_ in mappings(template)}
    return [
        f"{name} takes and sends messages without RecursiveLoop: Allow"
        for name, function in functions(template).items()
        if name in takers and function["Role"]["Fn::GetAtt"][0] in senders and function.get("RecursiveLoop") != "Allow"
    ]


def messages_stay_hidden_for_six_time_outs(template: Node) -> list[str]:
    return [
        f"{stage}: {queue} hides messages for less than six time-outs of {name}"
        for stage, values in every_stage(template)
        for name, _, queue, settings in mappings(template)
        if values.number(settings["VisibilityTimeout"]) < 6 * values.number(functions(template)[name]["Timeout"])
    ]


def a_lease_outlives_its_function(template: Node) -> list[str]:
    return [
        f"{stage}: the lease is not longer than the time-out"
        for stage, values in every_stage(template)
        if values.number({"Ref": "LeaseSeconds"}) <= values.number({"Ref": "StepTimeoutSeconds"})
    ]


def slow_is_four_fifths_of_the_time_out(template: Node) -> list[str]:
    found = []
    for name, alarm in of_type(template, "AWS::CloudWatch::Alarm").items():
        if alarm["MetricName"] == "Duration":
            function = _function_named(template, alarm["Dimensions"][0]["Value"])
            found += [
                f"{stage}: {name} is not at four fifths of the time-out"
                for stage, values in every_stage(template)
                if values.number(alarm["Threshold"]) != 800 * values.number(function["Timeout"])
            ]
    return found


def _function_named(template: Node, name: Node) -> Node:
    return next(function for function in functions(template).values() if function["FunctionName"] == name)


def split(template: Node, size: int) -> dict[str, int]:
    """How many connections each function gets by weight, of so many that the database accepts."""
    weight, always = (template["Mappings"]["Connections"][row] for row in ("weight", "always"))
    left = size - sum(always.values()) - FOR_THE_SUPERUSER
    return {name: left * share // sum(weight.values()) for name, share in weight.items()}


def the_connections_are_one_budget(template: Node) -> list[str]:
    """Every function that logs in to the database has its share, and all shares together are no more than there is."""
    budget, found = template["Mappings"]["Connections"], []
    sizes = [name for name in budget if name not in {"weight", "always"}]
    if sizes != template["Parameters"]["DatabaseConnections"]["AllowedValues"]:
        found.append("DatabaseConnections allows other sizes than Connections has")
    for size in sizes:
        if budget[size] != split(template, int(size)):
            found.append(f"Connections must say: '{size}': {split(template, int(size))}")
        found += [
            f"{size}: AWS takes 2 to 1000 for {name}, not {n}" for name, n in budget[size].items() if not 2 <= n <= 1000
        ]
    counted = {*budget["weight"], *budget["always"]}
    logs_in = {
        name.removesuffix("Function")
        for name, each in functions(template).items()
        if each["Handler"] not in CONNECTS_TO_NOTHING
    }
    found += [f"{name} has no share of the connections" for name in sorted(logs_in - counted)]
    found += [f"{name} has a share of the connections and needs none" for name in sorted(counted - logs_in)]
    return found + [problem for stage, values in every_stage(template) for problem in _within(template, stage, values)]


# It moves messages from one queue to another.
CONNECTS_TO_NOTHING = {"functions.forward.app.handler"}
# Called by a deployment or by hand: never more at once than is counted for them.
CALLED_ONE_BY_ONE = {"People", "Migrate"}
RESERVED = ("Api", "Intake", "Tick", "Sweep")


def _within(template: Node, stage: str, values: Values) -> Iterator[str]:
    """Whether what limits each function is its share."""
    budget = template["Mappings"]["Connections"]
    shares = {**budget["always"], **budget[str(values.of({"Ref": "DatabaseConnections"}))]}
    limits: dict[str, int] = {}
    for name, event, *_ in mappings(template):
        scaling = values.of(event.get("ScalingConfig", {}))
        if not isinstance(scaling, dict) or "MaximumConcurrency" not in scaling:
            yield f"{stage}: a mapping of {name} has no limit"
            continue
        if not 2 <= int(scaling["MaximumConcurrency"]) <= 1000:
            yield f"{stage}: AWS takes 2 to 1000 for {name}"
        own = name.removesuffix("Function")
        limits[own] = limits.get(own, 0) + int(scaling["MaximumConcurrency"])
    # Reserved, if the account has enough: what is above its share is answered with "busy", or waits.
    for name in RESERVED:
        reserved = functions(template)[f"{name}Function"].get("ReservedConcurrentExecutions", {}).get("Fn::If")
        limits[name] = 0 if not reserved or reserved[0] != "ReservesConcurrency" else values.number(reserved[1])
    for name, share in shares.items():
        if name not in CALLED_ONE_BY_ONE and limits.get(name) != share:
            yield f"{stage}: {name} may hold {limits.get(name)} connections, its share is {share}"


def steps_come_one_by_one(template: Node) -> list[str]:
    found = []
    for name, event, queue, settings in mappings(template):
        if event.get("FunctionResponseTypes") != ["ReportBatchItemFailures"]:
            found.append(f"{name} cannot give back one message of {queue}")
        if settings.get("FifoQueue") and "RedrivePolicy" in settings and event.get("BatchSize") != 1:
            found.append(f"{name} takes more than one step at once")
    return found


def a_fifo_queue_is_fast_and_delays_nothing(template: Node) -> list[str]:
    found = []
    for name, queue in of_type(template, "AWS::SQS::Queue").items():
        if not queue.get("FifoQueue"):
            continue
        if "DelaySeconds" in queue:
            found.append(f"{name} delays every message")
        fast = (queue.get("DeduplicationScope"), queue.get("FifoThroughputLimit"))
        if "RedrivePolicy" in queue and fast != ("messageGroup", "perMessageGroupId"):
            found.append(f"{name} is not in high throughput mode")
        if queue.get("ContentBasedDeduplication"):
            found.append(f"{name} would swallow a repair: its body is the same")
    return found


def every_queue_has_dead_letters(template: Node) -> list[str]:
    queues, found = of_type(template, "AWS::SQS::Queue"), []
    for name, queue in queues.items():
        if name.endswith("DeadQueue") or name in WAKES:
            continue
        redrive = queue.get("RedrivePolicy", {})
        dead = redrive.get("deadLetterTargetArn", {}).get("Fn::GetAtt", [""])[0]
        if dead not in queues or redrive.get("maxReceiveCount", 0) < 5:
            found.append(f"{name} has no queue for its dead letters, or gives up too soon")
        elif bool(queues[dead].get("FifoQueue")) != bool(queue.get("FifoQueue")):
            found.append(f"{dead} is of another type than {name}")
    return found


def every_queue_has_an_alarm(template: Node) -> list[str]:
    watched: dict[str, set[str]] = {}
    for alarm in of_type(template, "AWS::CloudWatch::Alarm").values():
        named = [each["Value"] for each in alarm.get("Dimensions", []) if isinstance(each["Value"], dict)]
        for value in named:
            for target in (value.get("Fn::Sub"), value.get("Fn::GetAtt", [None])[0]):
                watched.setdefault(str(target), set()).add(alarm["MetricName"])
    letters = {"NumberOfMessagesReceived", "ApproximateNumberOfMessagesVisible"}
    found = []
    for name in of_type(template, "AWS::SQS::Queue"):
        wanted = letters if name.endswith("DeadQueue") else {"ApproximateAgeOfOldestMessage"}
        found += [] if watched.get(name, set()) & wanted else [f"nobody is told about {name}"]
    for name, function in functions(template).items():
        seen = watched.get(function["FunctionName"]["Fn::Sub"], set())
        found += [
            f"nobody is told about {each} of {name}" for each in ("Errors", "Throttles", "Duration") if each not in seen
        ]
    return found


# What our own code counts, and what it means when there is none: nothing is wrong, or nobody counts any more.
WATCHED = {
    Metric.TICK: "breaching",
    Metric.SWEEP: "breaching",
    Metric.REPAIRS: "notBreaching",
    Metric.GIVEN_BACK: "notBreaching",
    Metric.SEND_FAILED: "notBreaching",
    Metric.RUNS_FAILED: "notBreaching",
    Metric.CONNECTIONS_USED: "notBreaching",
}


def no_failure_goes_unseen_because_it_was_caught(template: Node) -> list[str]:
    """An exception becomes a 5xx answer or a message that comes again, so Lambda's own count of errors stays zero."""
    alarms = of_type(template, "AWS::CloudWatch::Alarm").values()
    found = []
    for metric, missing in WATCHED.items():
        seen = [a for a in alarms if a["MetricName"] == metric and a["Namespace"] == {"Fn::Sub": "Baton/${Stage}"}]
        if not any(each["TreatMissingData"] == missing and "Dimensions" not in each for each in seen):
            found.append(f"nobody is told about {metric}")
    answers = [each for each in alarms if each["MetricName"] == "5xx" and each["Statistic"] == "Average"]
    if not any(each["Dimensions"] == [{"Name": "ApiId", "Value": {"Ref": "HttpApi"}}] for each in answers):
        found.append("nobody is told when the API answers with failures")
    if any("AlarmActions" not in each for each in alarms):
        found.append("an alarm tells nobody")
    return found


def no_tick_is_dropped_for_want_of_concurrency(template: Node) -> list[str]:
    """Lambda keeps a throttled call for as long as it may wait; the Scheduler calls again when Lambda does not even take it."""
    tick, schedule = functions(template)["TickFunction"], template["Resources"]["TickSchedule"]["Properties"]["Target"]
    found = []
    if tick.get("EventInvokeConfig", {}).get("MaximumEventAgeInSeconds", 21600) < 600:
        found.append("a throttled tick is dropped before the account has concurrency again")
    if schedule.get("RetryPolicy", {}).get("MaximumRetryAttempts", 185) < 1:
        found.append("a tick that Lambda does not take is dropped")
    if tick.get("ReservedConcurrentExecutions", {}).get("Fn::If", [""])[0] != "ReservesConcurrency":
        found.append("the tick has no concurrency of its own")
    return found


def nobody_migrates_behind_the_back_of_cloudformation(template: Node) -> list[str]:
    """It calls once and waits. Lambda must not call again, nor so late that the answer comes after CloudFormation gave up."""
    migrate, waits = functions(template)["MigrateFunction"], template["Resources"]["Schema"]["Properties"]
    calls = migrate.get("EventInvokeConfig", {})
    found = []
    if calls.get("MaximumRetryAttempts", 2) != 0:
        found.append("Lambda calls a migration again that died")
    if waits["ServiceTimeout"] < migrate["Timeout"] + calls.get("MaximumEventAgeInSeconds", 21600):
        found.append("a migration may still run when CloudFormation has given up")
    return found


def the_log_of_a_failed_first_deployment_stays(template: Node) -> list[str]:
    """A rollback deletes what the stack made; and a log group that stays must not be in the way of the next attempt."""
    logs = template["Resources"]["MigrateLogs"]
    found = []
    if logs.get("DeletionPolicy") != "Retain" or logs.get("UpdateReplacePolicy") != "Retain":
        found.append("the rollback of a first deployment deletes the log that says why")
    if "AWS::StackId" not in str(logs["Properties"]["LogGroupName"]):
        found.append("the log that was kept has the name that the next stack wants")
    if functions(template)["MigrateFunction"].get("LoggingConfig") != {"LogGroup": {"Ref": "MigrateLogs"}}:
        found.append("the migration logs elsewhere")
    return found


def production_keeps_its_people_and_files(template: Node) -> list[str]:
    """Deleting or replacing the stack by mistake must not delete who may log in, nor what was uploaded."""
    found = []
    for name in ("UserPool", "Bucket"):
        for policy, kept in (("DeletionPolicy", "RetainExceptOnCreate"), ("UpdateReplacePolicy", "Retain")):
            said = template["Resources"][name].get(policy)
            for stage, values in every_stage(template):
                if values.of(said) != (kept if stage == "prod" else "Delete"):
                    found.append(f"{stage}: {policy} of {name} is {values.of(said)}")
    return found


# Tick: 43,200 a month, sweep: 2,880; 100,000 traces a month are free.
TRACED = {"TickFunction", "SweepFunction", "PeopleFunction", "MigrateFunction"}


def traces_cost_nothing_unless_they_are_asked_for(template: Node) -> list[str]:
    found = []
    for stage, values in every_stage(template):
        for name, each in functions(template).items():
            wanted = "Active" if name in TRACED and stage != "local" else "PassThrough"
            if (traced := values.of(each.get("Tracing"))) != wanted:
                found.append(f"{stage}: {name} has Tracing {traced}, not {wanted}")
            if wanted == "Active" and not any(
                "xray:PutTraceSegments" in actions(s) for s in held_by(template, role_of(each))
            ):
                found.append(f"{name} may not hand in its traces")
    return found


def schedules_call_functions(template: Node) -> list[str]:
    return [
        f"{name} calls something that is no function"
        for name, schedule in of_type(template, "AWS::Scheduler::Schedule").items()
        if schedule["Target"]["Arn"].get("Fn::GetAtt", [""])[0] not in functions(template)
    ]


def stars_have_reasons(template: Node) -> list[str]:
    found: list[str] = []
    for holder, statement in statements(template):
        resources = statement["Resource"] if isinstance(statement["Resource"], list) else [statement["Resource"]]
        texts = [text for each in resources for text in _texts(each)]
        open_wide = any("*" in text for text in texts)
        found += [
            f"{holder} allows {action} on {texts} without a written reason"
            for action in (actions(statement) if statement["Effect"] == "Allow" else ())
            if (open_wide or "*" in action) and not _has_reason(holder, action)
        ]
    for name, role in of_type(template, "AWS::IAM::Role").items():
        if "arn:" in str(role.get("ManagedPolicyArns")):
            found.append(f"{name} has a policy of AWS, which is wider than it needs")
    return found


def each_function_has_a_role_of_its_own(template: Node) -> list[str]:
    roles = [str(function.get("Role")) for function in functions(template).values()]
    return [f"{role} is used by {roles.count(role)} functions" for role in sorted(set(roles)) if roles.count(role) > 1]


def every_folder_is_deployed_once(template: Node) -> list[str]:
    handlers = [function["Handler"] for function in functions(template).values()]
    folders = sorted(path.parent.name for path in (ROOT / "functions").glob("*/app.py"))
    readme = (ROOT / "README.md").read_text()
    found = [f"{handler} has no folder" for handler in handlers if handler.split(".")[1] not in folders]
    for name in folders:
        if handlers.count(f"functions.{name}.app.handler") != 1:
            found.append(f"functions/{name} is deployed {handlers.count(f'functions.{name}.app.handler')} times")
        if not (ROOT / "events" / f"{name}.json").exists():
            found.append(f"functions/{name} has no event")
        if not re.search(rf"^\| `{name}` \|", readme, re.MULTILINE):
            found.append(f"functions/{name} has no row in the README")
    for name, function in functions(template).items():
        folder = function["Handler"].split(".")[1]
        if function.get("FunctionName") != {"Fn::Sub": f"baton-${{Stage}}-{folder}"}:
            found.append(f"{name} is not named after its folder")
        logs = template["Resources"].get(name.removesuffix("Function") + "Logs", {}).get("Properties", {})
        if name != "MigrateFunction" and logs.get("LogGroupName") != {
            "Fn::Sub": f"/aws/lambda/baton-${{Stage}}-{folder}"
        }:
            found.append(f"the log group of {name} is not ours, so its lines are kept for ever")
    return found


def every_kind_has_its_queue(template: Node) -> list[str]:
    found = []
    for stage, values in every_stage(template):
        names = {values.of(queue["QueueName"]) for queue in of_type(template, "AWS::SQS::Queue").values()}
        for function, settings in functions(template).items():
            variables = {name: values.of(value) for name, value in settings["Environment"]["Variables"].items()}
            wanted = {variables["BATON_FIFO_QUEUE"].format(kind=kind.replace("_", "-")) for kind in KINDS}
            missing = (wanted | {variables["BATON_DELAY_QUEUE"]}) - names
            found += [f"{stage}: {function} would send to {name}, which is not there" for name in missing]
    return found


def variables_are_known(template: Node) -> list[str]:
    return [
        f"{name} is given {variable}, which no code reads"
        for name, function in functions(template).items()
        for variable in function["Environment"]["Variables"]
        if variable not in read_variables() and variable not in READ_BY_OTHERS
    ]


def the_schema_comes_first(template: Node) -> list[str]:
    resources, found = template["Resources"], []
    head = resources["Schema"]["Properties"]["Head"]
    if head != newest_revision():
        found.append(f"Schema.Head is {head}, but the newest revision is {newest_revision()}: it would not run")
    late = (name for name in functions(template) if resources[name].get("DependsOn") != "Schema")
    return found + [f"{name} may change before the schema that it needs" for name in late if name != "MigrateFunction"]


CONSOLE_ROUTES = {"GET /", f"GET {CONSOLE}", f"GET {CONSOLE}/{{path+}}"}
OPEN_ROUTES = {"GET /health", "GET /openapi.json", f"GET {DOCS}", f"ANY {MACHINES}/{{path+}}", *CONSOLE_ROUTES}


def strangers_see_only_what_is_nobodys(template: Node) -> list[str]:
    """Health, documents and the console's files; and the way of the machines, whose tokens the function itself asks for."""
    return [
        f"{route['RouteKey']} is open to everybody"
        for route in of_type(template, "AWS::ApiGatewayV2::Route").values()
        if route["AuthorizationType"] != "JWT" and route["RouteKey"] not in OPEN_ROUTES
    ]


def secrets_of_tenants_stay_under_their_prefix(template: Node) -> list[str]:
    """A star ends nothing but the prefix that the functions are told; only the API makes secrets there.

    Page ingestion writes new versions of them: a refresh token that its upstream has changed must be kept at once.
    """
    found = []
    for stage, values in every_stage(template):
        for function, settings in functions(template).items():
            prefix = values.of(settings["Environment"]["Variables"]["BATON_SECRETS_PREFIX"])
            for statement in held_by(template, role_of(settings)):
                resource = values.of(statement["Resource"])
                if not isinstance(resource, str) or "*" not in resource:
                    continue
                secret = [action for action in actions(statement) if action.startswith("secretsmanager:")]
                if secret and resource.partition(":secret:")[2] != f"{prefix}*":
                    found.append(f"{stage}: {function} may reach secrets beyond {prefix}: {resource}")
                renews = {"secretsmanager:PutSecretValue"} if function == "PageIngestFunction" else set()
                if set(secret) - {"secretsmanager:GetSecretValue"} - renews and function != "ApiFunction":
                    found.append(f"{stage}: {function} may write secrets")
    return found


def files_are_reached_under_a_named_folder(template: Node) -> list[str]:
    """What waits is under inbox/, what came in under uploads/, what goes out under exports/: no function may reach the bucket as a whole."""
    found = []
    for holder, statement in statements(template):
        objects = [each for each in actions(statement) if each.startswith("s3:") and each.endswith(("Object", "*"))]
        given = statement["Resource"] if isinstance(statement["Resource"], list) else [statement["Resource"]]
        wide = [text for each in given for text in _texts(each) if not re.search(r"}/(inbox|uploads|exports)/", text)]
        if objects and wide and statement["Effect"] == "Allow":
            found.append(f"{holder} allows {objects} on {wide}")
    return found


def whoever_reads_files_may_list_them(template: Node) -> list[str]:
    """S3 tells all others that a file that isn't there may not be read, and the local cloud doesn't: what is forbidden is taken for a
    right that the deployment lacks. With a condition the right is one to list, and says nothing of a file."""
    found = []
    for name in of_type(template, "AWS::IAM::Role"):
        held = [each for each in held_by(template, name) if each["Effect"] == "Allow"]
        listing = {
            action
            for each in held
            if each["Resource"] == {"Fn::GetAtt": ["Bucket", "Arn"]} and "Condition" not in each
            for action in actions(each)
        }
        reading = {action for each in held for action in actions(each)}
        for reads, lists in (("s3:GetObject", "s3:ListBucket"), ("s3:GetObjectVersion", "s3:ListBucketVersions")):
            if reads in reading and lists not in listing:
                found.append(f"{name} has {reads} without {lists}")
    return found


def a_page_puts_files_and_reads_nothing(template: Node) -> list[str]:
    """The console alone, by a form: no other method, no header, no other origin. And its policy names where they go."""
    wanted = [{"Fn::GetAtt": ["HttpApi", "ApiEndpoint"]}, "HasConsoleUrl"]
    found = []
    for name, bucket in of_type(template, "AWS::S3::Bucket").items():
        for rule in bucket.get("CorsConfiguration", {}).get("CorsRules", []):
            origins = [
                each.get("Fn::If", [each])[0] if isinstance(each, dict) else each for each in rule["AllowedOrigins"]
            ]
            if (
                origins != wanted
                or rule["AllowedMethods"] != ["POST"]
                or rule.keys() - {"AllowedOrigins", "AllowedMethods", "MaxAge"}
            ):
                found.append(f"pages may do more with {name} than put files")
    told = template["Resources"]["ApiFunction"]["Properties"]["Environment"]["Variables"].get("BATON_UPLOADS_URL")
    if told != {"Fn::Sub": "https://${Bucket.RegionalDomainName}"}:
        found.append("the console doesn't know where files go")
    return found


def batons_are_sent_by_one_policy(template: Node) -> list[str]:
    """It names the queue of every kind, and the delay queue; nobody has the same right by another way."""
    queues = {name for name, each in of_type(template, "AWS::SQS::Queue").items() if "RedrivePolicy" in each} | WAKES
    (sent,) = (each["Resource"] for holder, each in statements(template) if holder == "SendBatonsPolicy")
    named = {each["Fn::GetAtt"][0] for each in sent}
    found = [f"SendBatonsPolicy does not name {name}" for name in sorted(queues - named)]
    for holder, statement in statements(template):
        sends = any(action.startswith("sqs:SendMessage") for action in actions(statement))
        if (
            sends
            and holder != "SendBatonsPolicy"
            and statement["Resource"] != {"Fn::GetAtt": ["EventsDeadQueue", "Arn"]}
        ):
            found.append(f"{holder} sends messages by a policy of its own")
    return found


def connections_are_read_by_one_policy(template: Node) -> list[str]:
    return [
        f"{holder} reads the secrets of connections by a policy of its own"
        for holder, statement in statements(template)
        if "secretsmanager:GetSecretValue" in actions(statement) and "/connections/" in str(statement["Resource"])
        and holder != "ReadConnectionsPolicy"
    ]  # fmt: skip


def whoever_reads_a_secret_may_use_its_key(template: Node) -> list[str]:
    """Of secrets that a parameter names: with a key of the customer's, a role without kms:Decrypt reads nothing."""
    return [
        f"{name} reads secrets and could not decrypt them with a key of the customer's"
        for name in of_type(template, "AWS::IAM::Role")
        if any("SecretArn" in str(each["Resource"]) and "secretsmanager:GetSecretValue" in actions(each) for each in held_by(template, name))
        and not any("kms:Decrypt" in actions(each) for each in held_by(template, name))
    ]  # fmt: skip


def a_swapped_secret_is_work_for_the_migration(template: Node) -> list[str]:
    told = str(template["Resources"]["Schema"]["Properties"])
    wanted = ["OwnerSecretArn", "DatabaseSecretArn", "ApiSecretArn", "DatabaseIamAuth", "DatabaseHost", "DatabaseName"]
    return [f"another {name} would take effect only with the next migration" for name in wanted if name not in told]


def secrets_are_not_echoed(template: Node) -> list[str]:
    return [
        f"{name} would be shown to everybody who may look at the stack"
        for name, parameter in template["Parameters"].items()
        if re.search(r"Password$|DatabaseUrl$", name) and parameter.get("NoEcho") is not True
    ]


RULES: list[Rule] = [
    a_function_that_takes_and_sends_may_go_round,
    messages_stay_hidden_for_six_time_outs,
    a_lease_outlives_its_function,
    slow_is_four_fifths_of_the_time_out,
    the_connections_are_one_budget,
    steps_come_one_by_one,
    a_fifo_queue_is_fast_and_delays_nothing,
    every_queue_has_dead_letters,
    every_queue_has_an_alarm,
    no_failure_goes_unseen_because_it_was_caught,
    no_tick_is_dropped_for_want_of_concurrency,
    nobody_migrates_behind_the_back_of_cloudformation,
    the_log_of_a_failed_first_deployment_stays,
    production_keeps_its_people_and_files,
    traces_cost_nothing_unless_they_are_asked_for,
    schedules_call_functions,
    stars_have_reasons,
    each_function_has_a_role_of_its_own,
    every_folder_is_deployed_once,
    every_kind_has_its_queue,
    variables_are_known,
    the_schema_comes_first,
    strangers_see_only_what_is_nobodys,
    secrets_of_tenants_stay_under_their_prefix,
    files_are_reached_under_a_named_folder,
    whoever_reads_files_may_list_them,
    a_page_puts_files_and_reads_nothing,
    batons_are_sent_by_one_policy,
    connections_are_read_by_one_policy,
    whoever_reads_a_secret_may_use_its_key,
    a_swapped_secret_is_work_for_the_migration,
    secrets_are_not_echoed,
]


def _texts(resource: Any) -> Iterator[str]:
    """The texts in an expression; a log group's own ARN ends with a star that CloudFormation adds."""
    match resource:
        case str():
            yield resource
        case {"Fn::GetAtt": [name, "Arn"]}:
            yield f"<{name}>:*" if name.endswith("Logs") else f"<{name}>"
        case dict():
            for value in resource.values():
                yield from _texts(value)
        case list():
            for value in resource:
                yield from _texts(value)


def _has_reason(holder: str, action: str) -> bool:
    return any(fnmatch(holder, who) and (fnmatch(action, what) or action == what) for who, what in STARS)
