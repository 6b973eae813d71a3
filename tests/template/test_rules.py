"""Guards what the template promises, and that each rule would notice: every one meets a template that breaks it."""

from __future__ import annotations

import copy
import re
import tomllib
from collections.abc import Callable
from fnmatch import fnmatch

import pytest

from functions.catalogue import KINDS
from infra.sam import roles
from tests.support.template import ROOT, Node, Values, functions, load, mappings, of_type, stages
from tests.template import rules
from tests.template.rules import RULES, STARS, Rule

TEMPLATE = load(ROOT / "template.yaml")
DATABASE = load(ROOT / "infra" / "sam" / "database.yaml")

Break = Callable[[Node], object]


def prop(template: Node, name: str) -> Node:
    found: Node = template["Resources"][name]["Properties"]
    return found


def event(template: Node, function: str, name: str) -> Node:
    found: Node = prop(template, function)["Events"][name]["Properties"]
    return found


def grant(template: Node, role: str, **statement: object) -> None:
    prop(template, role)["Policies"][0]["PolicyDocument"]["Statement"].append({"Effect": "Allow", **statement})


def renamed(template: Node) -> None:
    template["Resources"]["OtherFunction"] = template["Resources"].pop("SweepFunction")


BROKEN: list[tuple[Rule, str, Break]] = [
    (rules.a_function_that_takes_and_sends_may_go_round, "step", lambda t: prop(t, "PageIngestFunction").pop("RecursiveLoop")),
    (rules.a_function_that_takes_and_sends_may_go_round, "forward", lambda t: prop(t, "ForwardFunction").update(RecursiveLoop="Terminate")),
    (rules.messages_stay_hidden_for_six_time_outs, "default", lambda t: t["Parameters"]["VisibilitySeconds"].update(Default=359)),
    (rules.messages_stay_hidden_for_six_time_outs, "one queue", lambda t: prop(t, "DelayQueue").update(VisibilityTimeout=30)),
    (rules.messages_stay_hidden_for_six_time_outs, "one function", lambda t: prop(t, "DeadLetterFunction").update(Timeout=61)),
    (rules.a_lease_outlives_its_function, "equal", lambda t: t["Parameters"]["LeaseSeconds"].update(Default=60)),
    (rules.slow_is_four_fifths_of_the_time_out, "parameter", lambda t: t["Parameters"]["SlowMilliseconds"].update(Default=50_000)),
    (rules.slow_is_four_fifths_of_the_time_out, "number", lambda t: prop(t, "ApiSlowAlarm").update(Threshold=29_000)),
    (rules.the_connections_are_one_budget, "one", lambda t: event(t, "DeadLetterFunction", "Delay")["ScalingConfig"].update(MaximumConcurrency=1)),
    (rules.the_connections_are_one_budget, "row", lambda t: t["Mappings"]["Connections"]["90"].update(PageIngest=50)),
    (rules.the_connections_are_one_budget, "uncounted", lambda t: t["Mappings"]["Connections"]["always"].pop("People")),
    (rules.the_connections_are_one_budget, "size", lambda t: t["Parameters"]["DatabaseConnections"]["AllowedValues"].append("5000")),
    (rules.the_connections_are_one_budget, "no limit", lambda t: event(t, "PageIngestFunction", "Steps").pop("ScalingConfig")),
    (rules.the_connections_are_one_budget, "another limit", lambda t: event(t, "PageIngestFunction", "Steps").update(ScalingConfig={"MaximumConcurrency": 100})),
    (rules.the_connections_are_one_budget, "unreserved", lambda t: prop(t, "IntakeFunction").pop("ReservedConcurrentExecutions")),
    (rules.the_connections_are_one_budget, "new function", lambda t: t["Resources"].update(OtherFunction=copy.deepcopy(t["Resources"]["TickFunction"]))),
    (rules.steps_come_one_by_one, "batch", lambda t: event(t, "PageIngestFunction", "Steps").update(BatchSize=2)),
    (rules.steps_come_one_by_one, "all or nothing", lambda t: event(t, "ForwardFunction", "Delayed").pop("FunctionResponseTypes")),
    (rules.a_fifo_queue_is_fast_and_delays_nothing, "delay", lambda t: prop(t, "PageIngestQueue").update(DelaySeconds=5)),
    (rules.a_fifo_queue_is_fast_and_delays_nothing, "slow", lambda t: prop(t, "PageIngestQueue").pop("FifoThroughputLimit")),
    (rules.a_fifo_queue_is_fast_and_delays_nothing, "by content", lambda t: prop(t, "PageIngestQueue").update(ContentBasedDeduplication=True)),
    (rules.every_queue_has_dead_letters, "none", lambda t: prop(t, "DelayQueue").pop("RedrivePolicy")),
    (rules.every_queue_has_dead_letters, "too soon", lambda t: prop(t, "DelayQueue")["RedrivePolicy"].update(maxReceiveCount=3)),
    (rules.every_queue_has_dead_letters, "type", lambda t: prop(t, "PageIngestDeadQueue").pop("FifoQueue")),
    (rules.every_queue_has_an_alarm, "letters", lambda t: t["Resources"].pop("EventsDeadQueueAlarm")),
    (rules.every_queue_has_an_alarm, "age", lambda t: t["Resources"].pop("DelayQueueAgeAlarm")),
    (rules.every_queue_has_an_alarm, "errors", lambda t: t["Resources"].pop("SweepErrorsAlarm")),
    (rules.every_queue_has_an_alarm, "throttles", lambda t: t["Resources"].pop("ApiThrottlesAlarm")),
    (rules.every_queue_has_an_alarm, "throttled jobs", lambda t: t["Resources"].pop("JobThrottlesAlarm")),
    (rules.no_failure_goes_unseen_because_it_was_caught, "missing tick", lambda t: prop(t, "TickMissingAlarm").update(TreatMissingData="missing")),
    (rules.no_failure_goes_unseen_because_it_was_caught, "missing sweep", lambda t: t["Resources"].pop("SweepMissingAlarm")),
    (rules.no_failure_goes_unseen_because_it_was_caught, "repairs", lambda t: t["Resources"].pop("RepairsAlarm")),
    (rules.no_failure_goes_unseen_because_it_was_caught, "of one kind", lambda t: prop(t, "GivenBackAlarm").update(Dimensions=[{"Name": "kind", "Value": {"Ref": "x"}}])),
    (rules.no_failure_goes_unseen_because_it_was_caught, "elsewhere", lambda t: prop(t, "SendFailedAlarm").update(Namespace="Baton")),
    (rules.no_failure_goes_unseen_because_it_was_caught, "runs", lambda t: t["Resources"].pop("RunsFailedAlarm")),
    (rules.no_failure_goes_unseen_because_it_was_caught, "connections", lambda t: t["Resources"].pop("ConnectionsAlarm")),
    (rules.no_failure_goes_unseen_because_it_was_caught, "answers", lambda t: t["Resources"].pop("Api5xxAlarm")),
    (rules.no_failure_goes_unseen_because_it_was_caught, "no rate", lambda t: prop(t, "Api5xxAlarm").update(Statistic="Sum")),
    (rules.no_failure_goes_unseen_because_it_was_caught, "nobody", lambda t: prop(t, "Api5xxAlarm").pop("AlarmActions")),
    (rules.no_tick_is_dropped_for_want_of_concurrency, "age", lambda t: prop(t, "TickFunction")["EventInvokeConfig"].update(MaximumEventAgeInSeconds=60)),
    (rules.no_tick_is_dropped_for_want_of_concurrency, "schedule", lambda t: prop(t, "TickSchedule")["Target"]["RetryPolicy"].update(MaximumRetryAttempts=0)),
    (rules.no_tick_is_dropped_for_want_of_concurrency, "unreserved", lambda t: prop(t, "TickFunction").pop("ReservedConcurrentExecutions")),
    (rules.nobody_migrates_behind_the_back_of_cloudformation, "again", lambda t: prop(t, "MigrateFunction").pop("EventInvokeConfig")),
    (rules.nobody_migrates_behind_the_back_of_cloudformation, "late", lambda t: prop(t, "Schema").update(ServiceTimeout=900)),
    (rules.the_log_of_a_failed_first_deployment_stays, "gone", lambda t: t["Resources"]["MigrateLogs"].pop("DeletionPolicy")),
    (rules.the_log_of_a_failed_first_deployment_stays, "in the way", lambda t: prop(t, "MigrateLogs").update(LogGroupName={"Fn::Sub": "/aws/lambda/baton-${Stage}-migrate"})),
    (rules.the_log_of_a_failed_first_deployment_stays, "elsewhere", lambda t: prop(t, "MigrateFunction").pop("LoggingConfig")),
    (rules.production_keeps_its_people_and_files, "people", lambda t: t["Resources"]["UserPool"].pop("DeletionPolicy")),
    (rules.production_keeps_its_people_and_files, "files", lambda t: t["Resources"]["Bucket"].update(UpdateReplacePolicy="Delete")),
    (rules.production_keeps_its_people_and_files, "also in dev", lambda t: t["Resources"]["Bucket"].update(DeletionPolicy="RetainExceptOnCreate")),
    (rules.traces_cost_nothing_unless_they_are_asked_for, "steps", lambda t: t["Globals"]["Function"].update(Tracing="Active")),
    (rules.traces_cost_nothing_unless_they_are_asked_for, "no right", lambda t: prop(t, "TickRole").update(ManagedPolicyArns=[{"Ref": "SendBatonsPolicy"}])),
    (rules.schedules_call_functions, "queue", lambda t: prop(t, "TickSchedule")["Target"].update(Arn={"Fn::GetAtt": ["DelayQueue", "Arn"]})),
    (rules.stars_have_reasons, "resource", lambda t: grant(t, "TickRole", Action="s3:GetObject", Resource="*")),
    (rules.stars_have_reasons, "action", lambda t: grant(t, "TickRole", Action=["s3:*"], Resource="arn:aws:s3:::x")),
    (rules.stars_have_reasons, "part", lambda t: grant(t, "TickRole", Action="s3:GetObject", Resource={"Fn::Sub": "${Bucket.Arn}/*"})),
    (rules.stars_have_reasons, "any database", lambda t: prop(t, "WorkerDatabasePolicy")["PolicyDocument"]["Statement"].append({"Effect": "Allow", "Action": "rds-db:connect", "Resource": "arn:aws:rds-db:x:y:dbuser:*/baton_worker"})),
    (rules.stars_have_reasons, "managed", lambda t: prop(t, "ApiRole")["ManagedPolicyArns"].append("arn:aws:iam::aws:policy/AmazonSQSFullAccess")),
    (rules.each_function_has_a_role_of_its_own, "shared", lambda t: prop(t, "SweepFunction").update(Role={"Fn::GetAtt": ["TickRole", "Arn"]})),
    (rules.every_folder_is_deployed_once, "none", lambda t: t["Resources"].pop("SweepFunction")),
    (rules.every_folder_is_deployed_once, "twice", lambda t: t["Resources"].update(Again=copy.deepcopy(t["Resources"]["TickFunction"]))),
    (rules.every_folder_is_deployed_once, "name", lambda t: prop(t, "SweepFunction").update(FunctionName="sweep")),
    (rules.every_folder_is_deployed_once, "logs", renamed),
    (rules.every_kind_has_its_queue, "queue", lambda t: prop(t, "PageIngestQueue").update(QueueName="pages.fifo")),
    (rules.every_kind_has_its_queue, "variable", lambda t: t["Globals"]["Function"]["Environment"]["Variables"].update(BATON_DELAY_QUEUE="later")),
    (rules.variables_are_known, "typo", lambda t: t["Globals"]["Function"]["Environment"]["Variables"].update(BATON_LEASE="70")),
    (rules.the_schema_comes_first, "head", lambda t: prop(t, "Schema").update(Head="0001")),
    (rules.the_schema_comes_first, "order", lambda t: t["Resources"]["ApiFunction"].pop("DependsOn")),
    (rules.strangers_see_only_what_is_nobodys, "open", lambda t: prop(t, "ApiRoute").update(AuthorizationType="NONE")),
    (rules.a_page_puts_files_and_reads_nothing, "reads", lambda t: prop(t, "Bucket")["CorsConfiguration"]["CorsRules"][0].update(AllowedMethods=["POST", "GET"])),
    (rules.a_page_puts_files_and_reads_nothing, "anybody", lambda t: prop(t, "Bucket")["CorsConfiguration"]["CorsRules"][0].update(AllowedOrigins=["*"])),
    (rules.a_page_puts_files_and_reads_nothing, "header", lambda t: prop(t, "Bucket")["CorsConfiguration"]["CorsRules"][0].update(AllowedHeaders=["*"])),
    (rules.a_page_puts_files_and_reads_nothing, "elsewhere", lambda t: prop(t, "ApiFunction")["Environment"]["Variables"].update(BATON_UPLOADS_URL="https://x.example")),
    (rules.files_are_reached_under_a_named_folder, "all", lambda t: grant(t, "ApiRole", Action="s3:GetObject", Resource={"Fn::Sub": "${Bucket.Arn}/*"})),
    (rules.whoever_reads_files_may_list_them, "not at all", lambda t: grant(t, "SearchRole", Action="s3:GetObject", Resource={"Fn::Sub": "${Bucket.Arn}/exports/*"})),
    (rules.whoever_reads_files_may_list_them, "a part", lambda t: next(each for each in rules.held_by(t, "RowJobRole") if "s3:ListBucket" in rules.actions(each)).update(Condition={"StringLike": {"s3:prefix": "inbox/*/"}})),
    (rules.whoever_reads_files_may_list_them, "no versions", lambda t: grant(t, "QueryRunRole", Action="s3:GetObjectVersion", Resource={"Fn::Sub": "${Bucket.Arn}/exports/*"})),
    (rules.secrets_of_tenants_stay_under_their_prefix, "wider", lambda t: grant(t, "PageIngestRole", Action="secretsmanager:GetSecretValue", Resource={"Fn::Sub": "arn:x:y:z:secret:baton/${Stage}/*"})),
    (rules.secrets_of_tenants_stay_under_their_prefix, "write", lambda t: grant(t, "QueryRunRole", Action="secretsmanager:PutSecretValue", Resource={"Fn::Sub": "arn:x:y:z:secret:baton/${Stage}/connections/*"})),
    (rules.batons_are_sent_by_one_policy, "own", lambda t: grant(t, "SweepRole", Action="sqs:SendMessage", Resource={"Fn::GetAtt": ["DelayQueue", "Arn"]})),
    (rules.batons_are_sent_by_one_policy, "missing", lambda t: prop(t, "SendBatonsPolicy")["PolicyDocument"]["Statement"][0]["Resource"].pop()),
    (rules.connections_are_read_by_one_policy, "own", lambda t: grant(t, "SweepRole", Action="secretsmanager:GetSecretValue", Resource={"Fn::Sub": "arn:x:y:z:secret:baton/${Stage}/connections/*"})),
    (rules.whoever_reads_a_secret_may_use_its_key, "no key", lambda t: prop(t, "SweepRole").update(ManagedPolicyArns=[{"Ref": "WorkerDatabasePolicy"}])),
    (rules.a_swapped_secret_is_work_for_the_migration, "api", lambda t: prop(t, "Schema")["Secrets"].pop()),
    (rules.secrets_are_not_echoed, "echo", lambda t: t["Parameters"]["NivodaPassword"].pop("NoEcho")),
]  # fmt: skip


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_template_keeps_the_rule(rule: Rule) -> None:
    assert rule(TEMPLATE) == []


@pytest.mark.parametrize(("rule", "how", "breaks"), BROKEN, ids=[f"{rule.__name__}-{how}" for rule, how, _ in BROKEN])
def test_a_template_that_breaks_the_rule_is_noticed(rule: Rule, how: str, breaks: Break) -> None:
    broken = copy.deepcopy(TEMPLATE)
    breaks(broken)

    assert rule(broken) != []


def test_every_rule_is_shown_able_to_fail() -> None:
    assert {rule for rule, *_ in BROKEN} == set(RULES)


def test_every_reason_for_a_star_is_still_needed() -> None:
    used = {
        reason
        for holder, statement in rules.statements(TEMPLATE)
        for action in rules.actions(statement)
        for reason in STARS
        if fnmatch(holder, reason[0]) and fnmatch(action, reason[1])
    }

    assert used == set(STARS)


@pytest.mark.parametrize("stage", sorted(stages()))
def test_a_stage_hands_over_parameters_that_the_template_takes(stage: str) -> None:
    for name, value in stages()[stage].items():
        parameter = TEMPLATE["Parameters"][name]
        assert "NoEcho" not in parameter, f"{name} is a secret and does not belong into samconfig.toml"
        assert str(value) in map(str, parameter.get("AllowedValues", [value]))
        if parameter["Type"] == "Number":
            assert parameter.get("MinValue", 0) <= int(value) <= parameter.get("MaxValue", int(value))


@pytest.mark.parametrize("stage", sorted(stages()))
def test_nothing_is_deployed_that_nobody_could_find_on_a_bill(stage: str) -> None:
    config = tomllib.loads((ROOT / "samconfig.toml").read_text())

    assert config[stage]["deploy"]["parameters"]["tags"] == ["product=baton", f"stage={stages()[stage]['Stage']}"]


def test_there_is_a_stage_for_everyday_and_one_for_production() -> None:
    assert {"default", "prod", "local"} == set(stages())
    assert {name: given["Stage"] for name, given in stages().items()} == {
        "default": "dev",
        "prod": "prod",
        "local": "local",
    }


def test_what_the_database_template_gives_is_what_the_template_takes() -> None:
    assert set(DATABASE["Outputs"]) <= set(TEMPLATE["Parameters"])
    assert {"DatabaseHost", "OwnerSecretArn", "SubnetIds", "SecurityGroupIds"} <= set(DATABASE["Outputs"])


def test_only_the_local_cloud_does_without_tls() -> None:
    for stage, given in stages().items():
        assert Values(TEMPLATE, given).holds({"Condition": "SpeaksTls"}) is (stage != "local")


def test_the_guide_does_not_price_another_stack_than_this_one() -> None:
    costs = (ROOT / "docs" / "deploy.md").read_text().partition("## What it costs")[2].partition("\n## ")[0]
    alarms, queues = re.search(r"about (\d+) alarms", costs), re.search(r"polling of (\d+) queues", costs)
    assert alarms
    assert queues
    for told, counted in (
        (alarms, len(of_type(TEMPLATE, "AWS::CloudWatch::Alarm"))),
        (queues, len([*mappings(TEMPLATE)])),
    ):
        assert abs(int(told[1]) - counted) <= 0.2 * counted, f"{told[0]}: there are {counted}"
    rows = dict(re.findall(r"^\| \*\*(with(?:out)? NAT)\*\*.*\| \*\*(\d+)\*\* \|$", costs, re.MULTILINE))
    parts = [int(each) for each in re.findall(r"\| (\d+) \|$", costs.partition("**without NAT**")[0], re.MULTILINE)]
    assert sum(parts) == int(rows["without NAT"])
    assert int(rows["with NAT"]) - int(rows["without NAT"]) == 33


def test_no_role_allows_what_the_page_of_roles_does_not_say() -> None:
    template = roles.parse((ROOT / "template.yaml").read_text())

    assert (ROOT / "docs" / "roles.md").read_text() == roles.page(template), "python -m infra.sam.roles > docs/roles.md"
    grant(template, "TickRole", Action="s3:GetObject", Resource={"Fn::Sub": "${Bucket.Arn}/exports/*"})
    assert (
        "`s3:GetObject` on `${Bucket.Arn}/exports/*`"
        in roles.page(template).partition("### `tick`")[2].partition("###")[0]
    )


def test_the_guide_says_of_every_function_what_it_may_reach_beyond_the_database() -> None:
    guide = (ROOT / "docs" / "deploy.md").read_text().partition("## Who may do what")[2].partition("\n## ")[0]
    rows = dict(re.findall(r"^\| `(\w+)`(?: too)? \| ([^|]+) \|", guide, re.MULTILINE))
    for settings in functions(TEMPLATE).values():
        name, role = settings["Handler"].split(".")[1], rules.role_of(settings)
        assert name in rows or name in KINDS, "what every kind may is said once for all"
        said = rows.get(name, "")
        if any(each.startswith("s3:") for held in rules.held_by(TEMPLATE, role) for each in rules.actions(held)):
            assert "files" in said, name
        if {"Ref": "ReadConnectionsPolicy"} in prop(TEMPLATE, role)["ManagedPolicyArns"] and name not in KINDS:
            assert "secrets of connections" in said, name
        for held in rules.held_by(TEMPLATE, role):
            if "secretsmanager:PutSecretValue" in rules.actions(held):
                assert re.search(r"write[^;]* the secrets of connections", said), name
            if rules.actions(held)[0].startswith("s3:") and "Fn::Sub" in held["Resource"]:
                folder = held["Resource"]["Fn::Sub"].removeprefix("${Bucket.Arn}/").removesuffix("*")
                assert f"`{folder.replace('*', '<tenant>')}`" in said, f"{name}: {folder}"
