"""Each alert fires within two evaluations after its situation has lasted as long as its rule wants.

By promtool, with the rules of the chart as they are; what makes the situations real is beside this file.
"""

from __future__ import annotations

import copy
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.alerts.prometheus import RULES, promtool, rules
from tests.servers import ROOT

STEP = 30
"""Seconds between two scrapes, and between two evaluations."""

BEFORE = 20
"""Scrapes while all is well."""

AFTER = 60
SUB = 'subscription="$shared/g/#"'


def then(well: float, ill: float, each: float = 0.0) -> str:
    """A series that is `well`, and then, in the situation, `ill` with `each` more at each scrape."""
    return f"{well:g}+0x{BEFORE - 1} {ill:g}+{each:g}x{AFTER}"


@dataclass(frozen=True)
class Case:
    """A situation, as series."""

    series: dict[str, str]
    minutes: float = 0.0
    """How long it lasts until the rule's own `for` begins, if it looks at a window."""


def group(**series: str) -> dict[str, str]:
    return {f"streamlease_group_{name}{{{SUB}}}": values for name, values in series.items()} | {
        f'streamlease_group_state{{{SUB},state="led"}}': then(1, 1)
    }


CASES = {
    "StreamleaseNoLeaderHost": Case({"streamlease_leaders": f"1+0x{BEFORE - 1} stale"}),
    "StreamleaseDeadFleet": Case(group(lag_seconds=then(0, 61, 30), borrowers=then(1, 0))),
    "StreamleaseGroupDamaged": Case(
        {f'streamlease_group_state{{{SUB},state="damaged"}}': f"_x{BEFORE} 1+0x{AFTER}"}
    ),
    "StreamleaseLeaderStalls": Case(
        group(lag_messages=then(0, 5), borrowers=then(1, 1), held_streams=then(2, 0))
    ),
    "StreamleaseNothingConsumed": Case(
        group(
            lag_seconds=then(0, 301, 30),
            borrowers=then(1, 1),
            committed_messages=f"0+10x{BEFORE - 1} 200+0x{AFTER}",
        ),
        minutes=5,
    ),
    "StreamleaseLagGrows": Case(
        group(lag_seconds=then(0, 301, 30), lag_messages=then(0, 10, 10), borrowers=then(1, 1))
    ),
    "StreamleaseStreamsWithoutOwner": Case(
        group(streams=then(2, 2), held_streams=then(2, 1), borrowers=then(1, 1))
    ),
    "StreamleaseLeadersChange": Case({"streamlease_fenced_leaders_total": then(0, 6)}),
    "StreamleaseEpochsHeldBack": Case(
        {
            'streamlease_epochs_frontier_seconds{space="s"}': then(0, 301, 30),
            'streamlease_epochs_held_back_publishers{space="s"}': then(0, 1),
        }
    ),
    "StreamleaseJobsRefused": Case({"streamlease_refused_jobs_total": then(0, 1)}),
    "StreamleaseSlowHandOver": Case(
        {
            f'streamlease_hand_over_seconds_bucket{{how="hand-over",le="{le}"}}': then(0, ill, ill)
            for le, ill in (("10.0", 0), ("30.0", 5), ("+Inf", 5))
        }
    ),
    "StreamleaseConsumersReconnect": Case(
        {f'streamlease_consumer_reconnects_total{{{SUB},reason="the_leader_is_silent"}}': then(0, 6)}
    ),
    "StreamleasePublishingFails": Case(
        {'streamlease_publish_failures_total{error="Indefinite"}': then(0, 1, 1)}
    ),
    "StreamleaseGatewayFails": Case(
        {'streamlease_gateway_requests_total{route="/v1/topics/*",status="503"}': then(0, 1, 1)}
    ),
    "StreamleaseGatewayRefuses": Case({'streamlease_gateway_refused_total{limit="rate"}': then(0, 600, 600)}),
    "StreamleaseMqttDisconnected": Case({'streamlease_mqtt_connected{pod="b"}': then(1, 0)}),
    "StreamleaseMqttStuck": Case(
        {
            'streamlease_mqtt_in_hand{pod="b"}': then(0, 5),
            'streamlease_mqtt_brought_total{pod="b"}': then(9, 9),
        },
        minutes=5,
    ),
    "StreamleaseMqttSessionLost": Case({'streamlease_mqtt_sessions_lost_total{pod="b"}': then(0, 1)}),
    "StreamleaseMqttDropped": Case({'streamlease_mqtt_dropped_total{pod="b",error="NoSpace"}': then(0, 1)}),
}


def test_a_leader_that_is_long_at_one_turn_stalls_whatever_leases_stand(tmp_path: Path) -> None:
    series = group(lag_messages=then(0, 5), borrowers=then(1, 1), held_streams=then(2, 2))
    turn = {f"streamlease_group_turn_seconds{{{SUB}}}": then(0, 31, 30)}
    judged(tmp_path, "StreamleaseLeaderStalls", [(-1.0, False), (0.5, False), (2.0, True)], series | turn)
    judged(tmp_path, "StreamleaseLeaderStalls", [(20.0, False)], series)


def test_a_dead_fleet_is_told_though_nobody_knows_for_how_long_messages_wait(tmp_path: Path) -> None:
    series = group(lag_messages=then(0, 5), borrowers=then(1, 0))
    judged(tmp_path, "StreamleaseDeadFleet", [(-1.0, False), (0.5, False), (2.0, True)], series)
    young = {f"streamlease_group_lag_seconds{{{SUB}}}": then(0, 5)}
    judged(tmp_path, "StreamleaseDeadFleet", [(20.0, False)], series | young)
    some = group(lag_seconds=then(0, 61, 30), borrowers=then(1, 0))
    judged(tmp_path, "StreamleaseDeadFleet", [(2.0, True)], some)


def test_every_alert_has_a_situation() -> None:
    assert {rule["alert"] for rule in rules() if "alert" in rule} == set(CASES)


def test_the_page_tells_how_long_each_condition_must_last() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    told = re.findall(
        r"^\| `(Streamlease\w+)` \| [^|]+ \| ([^|]*) \| ([^|]*) \| ([^|]*) \|$", page, re.MULTILINE
    )
    assert [tuple(map(str.strip, row)) for row in told] == [
        (
            rule["alert"],
            f"{minutes:g}m" if (minutes := CASES[rule["alert"]].minutes) else "",
            rule.get("for", ""),
            rule["labels"]["severity"],
        )
        for rule in rules()
        if "alert" in rule
    ]


def minutes_of(rule: dict[str, Any]) -> float:
    """How long its situation must last."""
    text = rule.get("for", "0m")
    assert text.endswith("m")
    return float(text[:-1])


def judged(
    tmp_path: Path,
    name: str,
    expected: list[tuple[float, bool]],
    series: dict[str, str],
    **release: str,
) -> None:
    """promtool says whether the alert fires so many minutes after its situation began, once.

    Args:
        release: labels of the release where it is.
    """
    chosen = copy.deepcopy(rules())
    for rule in chosen:
        rule.pop("annotations", None)
    (rule,) = [one for one in chosen if one.get("alert") == name]
    found = CASES[name].series
    labels = {"severity": rule["labels"]["severity"]}
    for part in next(iter(found)).partition("{")[2].rstrip("}").split(","):
        key, _, value = part.partition("=")
        if key in ("namespace", "job", "subscription", "space", "pod", "error", "limit", "route"):
            labels[key] = value.strip('"')
    if name == "StreamleaseMqttDropped":
        labels |= {"pod": "b", "error": "NoSpace"}
    labels |= release
    tests = [
        {
            "eval_time": f"{round((BEFORE * STEP) + minutes * 60)}s",
            "alertname": name,
            "exp_alerts": [{"exp_labels": labels}] if fires else [],
        }
        for minutes, fires in expected
    ]
    (tmp_path / "rules.yml").write_text(
        yaml.safe_dump({"groups": [{"name": "streamlease", "rules": chosen}]})
    )
    (tmp_path / "test.yml").write_text(
        yaml.safe_dump(
            {
                "rule_files": ["rules.yml"],
                "evaluation_interval": f"{STEP}s",
                "tests": [
                    {
                        "interval": f"{STEP}s",
                        "input_series": [{"series": one, "values": values} for one, values in series.items()],
                        "alert_rule_test": tests,
                    }
                ],
            }
        )
    )
    done = promtool("test", "rules", str(tmp_path / "test.yml"))
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_finds_nothing_wrong_with_the_rules() -> None:
    done = promtool("check", "rules", str(RULES))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", CASES)
def test_an_alert_fires_within_two_evaluations_and_not_before_its_time(name: str, tmp_path: Path) -> None:
    (rule,) = [one for one in rules() if one.get("alert") == name]
    case = CASES[name]
    lasts = minutes_of(rule) + case.minutes
    expected = [(-1.0, False), (lasts + 2 * STEP / 60, True)]
    if lasts:
        expected.insert(1, (lasts - STEP / 60, False))
    judged(tmp_path, name, expected, case.series)


@pytest.mark.parametrize("state", ["paused", "expired"])
@pytest.mark.parametrize(
    "name",
    [
        "StreamleaseDeadFleet",
        "StreamleaseLeaderStalls",
        "StreamleaseNothingConsumed",
        "StreamleaseLagGrows",
        "StreamleaseStreamsWithoutOwner",
    ],
)
def test_what_an_operator_paused_or_gave_up_alerts_nobody(name: str, state: str, tmp_path: Path) -> None:
    series = {one: values for one, values in CASES[name].series.items() if "state=" not in one}
    series[f'streamlease_group_state{{{SUB},state="{state}"}}'] = then(1, 1)
    judged(tmp_path, name, [(20.0, False)], series)


@pytest.mark.parametrize("apart", ["namespace", "job"])
@pytest.mark.parametrize(
    "name",
    [
        "StreamleaseNoLeaderHost",
        "StreamleaseDeadFleet",
        "StreamleaseGroupDamaged",
        "StreamleaseLeaderStalls",
        "StreamleaseNothingConsumed",
        "StreamleaseLagGrows",
        "StreamleaseStreamsWithoutOwner",
    ],
)
def test_of_two_releases_in_one_prometheus_the_one_that_is_ill_is_told(
    name: str, apart: str, tmp_path: Path
) -> None:
    """Both have a group of the same name; that of the other release is well, or paused."""
    ill = {"namespace": "here", "job": "here"}
    other = ill | {apart: "there"}
    series = {}
    for one, values in CASES[name].series.items():
        series[labelled(one, ill)] = values
        if 'state="damaged"' not in one:
            series[labelled(one, other)] = re.sub(r"x\d+.*", f"x{BEFORE + AFTER}", values)
    (rule,) = [one for one in rules() if one.get("alert") == name]
    lasts = minutes_of(rule) + CASES[name].minutes + 2 * STEP / 60
    judged(tmp_path, name, [(-1.0, False), (lasts, True)], series, **ill)
    paused = labelled(f'streamlease_group_state{{{SUB},state="paused"}}', other)
    judged(tmp_path, name, [(lasts, True)], series | {paused: then(1, 1)}, **ill)


def labelled(series: str, labels: dict[str, str]) -> str:
    """The series of that release."""
    name, _, own = series.rstrip("}").partition("{")
    more = [f'{key}="{value}"' for key, value in labels.items()]
    return f"{name}{{{','.join([*filter(None, [own]), *more])}}}"


def test_the_last_hosts_of_a_release_are_missed_for_a_day_and_where_none_ever_was(tmp_path: Path) -> None:
    none = {"up": then(1, 1)}
    judged(tmp_path, "StreamleaseNoLeaderHost", [(2.0, True)], none)
    gone = {'streamlease_leaders{job="here"}': f"1+0x{BEFORE - 1} stale"}
    judged(tmp_path, "StreamleaseNoLeaderHost", [(1400.0, True)], gone, job="here")
    judged(tmp_path, "StreamleaseNoLeaderHost", [(1500.0, True)], gone)


def test_a_change_of_the_host_that_tells_neither_ends_an_alert_nor_doubles_it(tmp_path: Path) -> None:
    """The first host has gone, and the second one tells a scrape later."""
    series = {}
    for one, values in CASES["StreamleaseDeadFleet"].series.items():
        head = one.rstrip("}")
        series[f'{head},pod="1"}}'] = (
            f"{values.partition(' ')[0]} {values.split()[1].replace('x60', 'x8')} stale"
        )
        ill = values.split()[1].partition("x")[0]
        series[f'{head},pod="2"}}'] = f"_x{BEFORE + 10} {ill}x50"
    judged(tmp_path, "StreamleaseDeadFleet", [(4.0, True), (4.5, True), (5.0, True), (8.0, True)], series)
