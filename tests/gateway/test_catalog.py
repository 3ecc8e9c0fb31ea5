"""The catalog over HTTP: listed, followed, resumed at another gateway; with rights, and without nonsense."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from tests.gateway.conftest import Client, Start
from tests.gateway.http_client import HttpClient
from tests.gateway.test_event_streams import events, some

PATH = "/v1/catalog/spaces"


async def test_it_is_listed_and_followed_and_goes_on_at_another_gateway(
    client: Client, gateway: HttpClient, start_gateway: Start
) -> None:
    await client.create_space("s", ["a/#"], streams=3)
    answer = await gateway.get(PATH)
    assert answer.status == 200
    (item,) = answer.json()["items"]
    assert (item["space"], item["streams"], item["count"]) == ("s", 3, 1)
    async with gateway.streaming(PATH, follow="true") as (head, parts):
        assert (head.status, head.headers["content-type"]) == (200, "text/event-stream")
        stream = events(parts)
        (first,) = await some(stream, 1)
        assert (first.data["item"]["space"], first.data["diff"]) == ("s", 1)
        behind = await anext(stream)
        assert behind.data is None and behind.id == answer.json()["at"]
        await client.create_space("t", ["t/#"])
        (change,) = await some(stream, 1)
        assert (change.data["item"]["space"], change.data["diff"]) == ("t", 1)
    await client.spaces.delete("t")
    other = await start_gateway()
    async with other.streaming(PATH, {"last-event-id": change.id}, follow="") as (_, parts):
        (gone,) = await some(events(parts), 1)
    assert (gone.data["item"]["space"], gone.data["diff"]) == ("t", -1)
    async with other.streaming(PATH, follow="true", **{"from": behind.id}) as (_, parts):
        assert [one.data["diff"] for one in await some(events(parts), 2)] == [1, -1]


async def test_each_kind_is_there(client: Client, gateway: HttpClient) -> None:
    document = (await gateway.get("/openapi.json")).json()
    names = document["paths"]["/v1/catalog/{name}"]["get"]["parameters"][0]["schema"]["enum"]
    for name in names:
        assert (await gateway.get(f"/v1/catalog/{name}")).status == 200


@pytest.mark.parametrize(
    ("path", "parameters", "status", "said"),
    [
        ("/v1/catalog/nothing", {}, 404, "the catalog has no collection 'nothing'"),
        ("/v1/catalog/", {}, 404, "the catalog has no collection ''"),
        (PATH, {"follow": "maybe"}, 400, "follow is 'maybe'"),
        (PATH, {"from": "x"}, 400, "it needs follow=true"),
        (PATH, {"from": "x", "follow": "true"}, 400, "the cursor is none of spaces"),
        (PATH, {"filter": "#"}, 400, "there is no parameter 'filter'"),
    ],
)
async def test_nonsense_is_a_problem(
    gateway: HttpClient, path: str, parameters: dict[str, str], status: int, said: str
) -> None:
    answer = await gateway.get(path, **parameters)
    assert answer.status == status
    assert said in answer.json()["detail"]


async def test_what_is_accepted(gateway: HttpClient) -> None:
    assert (await gateway.get(PATH, {"accept": "text/event-stream"})).status == 406
    assert (await gateway.get(PATH, {"accept": "application/json"}, follow="true")).status == 406


async def test_a_token_needs_the_right_to_read_it(
    client: Client, start_gateway: Start, tmp_path: Path
) -> None:
    file = tmp_path / "tokens.json"
    tokens = [("all", ["$catalog/#"]), ("one", ["$catalog/spaces"]), ("none", ["#"])]
    file.write_text(
        json.dumps(
            {
                "tokens": [
                    {"name": name, "sha256": hashlib.sha256(name.encode()).hexdigest(), "consume": consume}
                    for name, consume in tokens
                ]
            }
        )
    )
    http = await start_gateway(tokens=file)
    wanted = {"all": (200, 200), "one": (200, 403), "none": (403, 403)}
    for name, statuses in wanted.items():
        bearer = {"authorization": f"Bearer {name}"}
        answers = [await http.get(f"/v1/catalog/{one}", bearer) for one in ("spaces", "hosts")]
        assert tuple(one.status for one in answers) == statuses
    assert (await http.get(PATH)).status == 401
