"""Who may do what: tokens, cookies, and the headers of a proxy."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest

from streamlease.admin.ui.logins import LASTS_SECONDS, ConsoleRole, Logins, Person, ProxyHeaders
from streamlease.protocol.errors import InvalidOption

SECRET = "a-token-for-the-tests"


def document(*people: tuple[str, str, str]) -> str:
    """A file of tokens: name, token, role."""
    tokens = [
        {"name": name, "sha256": hashlib.sha256(token.encode()).hexdigest(), "role": role}
        for name, token, role in people
    ]
    return json.dumps({"tokens": tokens})


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "tokens"
    path.write_text(document(("ana", "token-of-ana", "operator"), ("ben", "token-of-ben", "observer")))
    return path


def test_without_a_file_everybody_looks_and_nobody_acts() -> None:
    logins = Logins()
    assert logins.everyone == Person("", ConsoleRole.OBSERVER)
    assert (logins.by_token, logins.with_token(""), logins.with_token("x")) == (False, None, None)
    assert logins.with_cookie(logins.cookie(Person("ana", ConsoleRole.ADMIN), 0), 1) is None


def test_one_token_is_of_an_admin_and_everybody_looks(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(SECRET + "\n")
    logins = Logins(tmp_path / "token")
    assert logins.with_token(SECRET) == Person("", ConsoleRole.ADMIN)
    assert logins.with_token(SECRET + "x") is None
    assert logins.everyone == Person("", ConsoleRole.OBSERVER)


def test_several_tokens_have_roles_and_nobody_looks_without_one(file: Path) -> None:
    logins = Logins(file)
    assert logins.everyone is None
    assert logins.with_token("token-of-ana") == Person("ana", ConsoleRole.OPERATOR)
    assert logins.with_token("token-of-ben") == Person("ben", ConsoleRole.OBSERVER)
    assert logins.with_token("ana") is None


def test_a_cookie_holds_in_every_console_with_the_same_file_and_not_for_ever(file: Path) -> None:
    ana = Person("ana", ConsoleRole.OPERATOR)
    cookie = Logins(file).cookie(ana, 1000.0)
    other = Logins(file)
    assert other.with_cookie(cookie, 1000.0 + LASTS_SECONDS - 1) == ana
    assert other.with_cookie(cookie, 1000.0 + LASTS_SECONDS) is None


@pytest.mark.parametrize("forged", ["", ".", "x.y", "WyJhbmEiLCAiQURNSU4iLCA5OTk5OTk5OTk5XQ==.00", "ä.ö"])
def test_a_cookie_that_was_not_given_is_none(file: Path, forged: str) -> None:
    assert Logins(file).with_cookie(forged, 0) is None


def test_a_cookie_cannot_be_given_another_role(file: Path) -> None:
    logins = Logins(file)
    observer, admin = (
        logins.cookie(Person("ana", role), 0) for role in (ConsoleRole.OBSERVER, ConsoleRole.ADMIN)
    )
    assert logins.with_cookie(f"{admin.partition('.')[0]}.{observer.partition('.')[2]}", 1) is None


def test_when_the_file_changes_everybody_logs_in_anew(file: Path) -> None:
    logins = Logins(file)
    cookie = logins.cookie(Person("ana", ConsoleRole.OPERATOR), 0)
    file.write_text(document(("cleo", "token-of-cleo", "admin")))
    os.utime(file, (1, 1))
    logins.look_again()
    assert logins.with_cookie(cookie, 1) is None
    assert logins.with_token("token-of-ana") is None
    assert logins.with_token("token-of-cleo") == Person("cleo", ConsoleRole.ADMIN)
    file.write_text("{")
    with pytest.raises(InvalidOption, match="is no file of tokens"):
        logins.look_again()
    assert logins.with_token("token-of-cleo") is not None, "the former tokens go on"


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        '{"tokens": [{"name": "a", "sha256": "00", "role": "admin"}]}',
        document(("a", "t", "king")),
        document(("a b", "t", "admin")),
        "short",
    ],
)
def test_what_is_no_file_of_tokens_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "tokens").write_text(text)
    with pytest.raises(InvalidOption):
        Logins(tmp_path / "tokens")


def test_a_proxy_is_believed_from_its_address_alone() -> None:
    logins = Logins(proxy=ProxyHeaders("x-user", "x-role", frozenset({"10.0.0.7"})))
    assert logins.everyone is None
    said = {"x-user": "ana", "x-role": "Operator"}
    assert logins.with_headers(said, "10.0.0.7") == Person("ana", ConsoleRole.OPERATOR)
    assert logins.with_headers(said, "10.0.0.8") is None
    assert logins.with_headers({"x-role": "admin"}, "10.0.0.7") is None
    for role in ("", "king"):
        found = logins.with_headers({"x-user": "ana", "x-role": role}, "10.0.0.7")
        assert found == Person("ana", ConsoleRole.OBSERVER)
