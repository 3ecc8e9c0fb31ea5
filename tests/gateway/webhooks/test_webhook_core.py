"""The pure parts: which callbacks are acceptable, and how a webhook stands."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlease.gateway.webhooks.core.callbacks import (
    InvalidCallback,
    RefusedAddress,
    check_address,
    parse_address,
    parse_callback,
)
from streamlease.gateway.webhooks.core.subscribing_forms import parse_standing, standing_json
from streamlease.gateway.webhooks.core.webhook_standing import (
    TRANSITIONS,
    Patience,
    Trouble,
    WebhookStanding,
    WebhookState,
)
from streamlease.protocol.errors import InvalidOption

PRIVATE = [
    "http://127.0.0.1/", "http://127.1/", "http://2130706433/", "http://0177.0.0.1/", "http://0x7f.0.0.1/",
    "http://0x7f000001/", "http://0/", "http://0.0.0.0/", "http://10.1.2.3/", "http://172.16.0.1/",
    "http://192.168.1.1/", "http://169.254.169.254/latest/meta-data/", "http://100.64.0.1/",
    "http://224.0.0.1/",
    "http://255.255.255.255/", "http://198.18.0.1/", "http://[::1]/", "http://[::]/",
    "http://[::ffff:127.0.0.1]/", "http://[::ffff:7f00:1]/", "http://[::127.0.0.1]/", "http://[fe80::1]/",
    "http://[fc00::1]/", "http://[fec0::1]/", "http://[ff02::1]/", "http://[64:ff9b::7f00:1]/",
    "http://[64:ff9b::10.0.0.1]/", "http://[2002:7f00:1::]/", "http://[2002:a00:1::1]/",
    "http://[2001:0:0:0:0:0:80ff:fffe]/", "http://[2001:db8::1]/", "http://127.0.0.1./",
    "http://127.0.0.1:6379/", "https://[::ffff:169.254.169.254]/",
]  # fmt: skip

MALFORMED = [
    "", "x", "/hook", "//example.com/", "ftp://example.com/", "file:///etc/passwd", "gopher://x/", "HTTP:x",
    "http:example.com", "http:///x", "http://", "http://?x", "http://user@example.com/",
    "http://user:secret@example.com/", "http://@example.com/", "http://example.com:0/",
    "http://example.com:65536/", "http://example.com:/", "http://example.com:x/", "http://example.com:-1/",
    "http://a b/", "http://a\\b/", "http://example.com\\@127.0.0.1/", "http://example.com/a\r\nb: c",
    "http://example.com/\x00", "http://exämple.com/", "http://example.com/ü", "http://[::1/", "http://::1/",
    "http://[fe80::1%25eth0]/", "http://[x]/", "http://[::1]x/", "http://example..com/", "http://.example.com/",
    "http://-/", "http://example.com/#x", "http://1.2.3/", "http://1.2.3.4.5/", "http://256.1.1.1/",
    "http://example.com/" + "a" * 2048, "http://a%2fb/", "http://example.0x1/", "http://[1.2.3.4]/",
    "http://" + "a" * 64 + ".com/",
]  # fmt: skip


@pytest.mark.parametrize("url", PRIVATE)
def test_an_address_that_is_not_public_is_refused_in_whatever_form(url: str) -> None:
    with pytest.raises(InvalidCallback) as error:
        parse_callback(url, allow_private=False)
    assert "callback" in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("allow_private", [False, True])
@pytest.mark.parametrize("url", MALFORMED)
def test_what_is_no_callback(url: str, allow_private: bool) -> None:
    with pytest.raises(InvalidCallback) as error:
        parse_callback(url, allow_private=allow_private)
    assert "secret" not in str(error.value) and "\r" not in str(error.value)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://example.com", (False, "example.com", 80, "/", "example.com")),
        ("https://Example.com/a?b=c%20d", (True, "example.com", 443, "/a?b=c%20d", "example.com")),
        ("https://example.com:8443/", (True, "example.com", 8443, "/", "example.com:8443")),
        ("http://example.com:80?", (False, "example.com", 80, "/?", "example.com")),
        ("http://93.184.216.34/", (False, "93.184.216.34", 80, "/", "93.184.216.34")),
        ("http://[2606:2800::1]:81/x", (False, "2606:2800::1", 81, "/x", "[2606:2800::1]:81")),
        ("http://xn--exmple-cua.com/", (False, "xn--exmple-cua.com", 80, "/", "xn--exmple-cua.com")),
        ("http://my_host.example./", (False, "my_host.example.", 80, "/", "my_host.example.")),
    ],
)  # fmt: skip
def test_a_callback(url: str, expected: tuple[object, ...]) -> None:
    found = parse_callback(url, allow_private=False)
    assert (found.secure, found.host, found.port, found.target, found.host_header) == expected


def test_private_addresses_are_allowed_if_the_operator_says_so() -> None:
    for url in ("http://127.0.0.1/", "http://[::1]/", "http://localhost:1/"):
        parse_callback(url, allow_private=True)
    parse_callback("http://localhost/", allow_private=False)  # its addresses are checked when it is resolved


@given(st.integers(0, 2**32 - 1))
def test_an_address_is_judged_alike_in_all_its_forms(number: int) -> None:
    address = ipaddress.IPv4Address(number)

    def refused(text: str) -> bool:
        try:
            check_address(parse_address(text), "host")
        except RefusedAddress:
            return True
        return False

    plain = refused(str(address))
    assert plain or address.is_global
    assert refused(f"::ffff:{address}") is plain
    assert refused(f"64:ff9b::{address}") is plain
    assert refused(f"::ffff:{address}%eth0") is plain
    if plain:
        assert refused(str(ipaddress.IPv6Address((0x2002 << 112) | (number << 80))))


START = WebhookStanding("c0", "c0")


def trouble(at: int) -> Trouble:
    return Trouble("callback-status", "it answered 500", at)


def test_pauses_grow_and_then_it_is_suspended() -> None:
    patience = Patience(first_pause_ms=1000, longest_pause_ms=5000, suspend_after_ms=20_000)
    standing, now, pauses = START, 1_000_000, []
    while standing.state is not WebhookState.SUSPENDED:
        standing = standing.failed(trouble(now), patience)
        pauses.append(standing.again_at - now)
        now = standing.again_at
    assert pauses[:-1] == [1000, 2000, 4000, 5000, 5000, 5000]
    assert standing.failing_since == 1_000_000 and standing.trouble is not None and standing.again_at == 0
    assert standing.taken("c1", 1) is standing and standing.failed(trouble(now), patience) is standing
    assert standing.given_up(trouble(now)) is standing
    again = standing.resumed()
    assert again == WebhookStanding("c0", "c0") and again.taken("c1", 3).delivered == 3


def test_a_success_ends_the_failures() -> None:
    standing = START.failed(trouble(5), Patience())
    assert (standing.state, standing.failures, standing.position) == (WebhookState.FAILING, 1, "c0")
    assert standing.taken("c1", 2) == WebhookStanding("c1", "c1", delivered=2)
    assert START.failed(trouble(5), Patience(), wants_no_more=True).state is WebhookState.SUSPENDED


def test_only_the_moves_of_the_table_happen() -> None:
    reached = {state: {to for (of, _), to in TRANSITIONS.items() if of is state} for state in WebhookState}
    assert reached[WebhookState.SUSPENDED] == set()
    assert reached[WebhookState.FAILING] == reached[WebhookState.ACTIVE] == {*WebhookState}


@given(
    st.builds(
        WebhookStanding,
        st.text(min_size=1), st.text(min_size=1), st.sampled_from(WebhookState), st.integers(0, 99),
        st.integers(0, 2**42), st.integers(0, 2**42), st.integers(0, 2**50),
        st.none() | st.builds(Trouble, st.text(), st.text(), st.integers(0, 2**42), st.none() | st.text()),
    )
)  # fmt: skip
def test_a_standing_is_kept_as_it_is(standing: WebhookStanding) -> None:
    assert parse_standing(standing_json(standing)) == standing


@pytest.mark.parametrize(
    "values",
    [{"first_pause_ms": 0}, {"first_pause_ms": 2, "longest_pause_ms": 1}, {"suspend_after_ms": 999}],
)
def test_nonsense_is_refused(values: dict[str, int]) -> None:
    with pytest.raises(InvalidOption):
        Patience(**values)
