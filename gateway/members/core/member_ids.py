"""Ids of members: signed, so that nobody can make one, and whoever is shown it knows its filter. Pure.

::

    id = base64url( first 16 bytes of HMAC-SHA256(key, token | client | group | filter) | token | filter )

`token` are 12 random bytes, which no other member ever has. The group stands in the path of the request, and
the client is the name of its token: an id is none in another group, or with another client's token. All
gateways of one Redis have one key (``registry.shared_secrets``).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from typing import NamedTuple

from streamlease.gateway.members.core.member_refusals import UnknownMember
from streamlease.protocol.topics import SharedSubscription

SIGNATURE_BYTES = 16
TOKEN_BYTES = 12
LONGEST_FILTER = 4096
"""Bytes: the id of a member is a part of URLs."""

LONGEST_ID = 8192


class MemberId(NamedTuple):
    """A member."""

    token: str
    """What no other member has: 24 hexadecimal digits."""
    shared: SharedSubscription

    @property
    def session(self) -> str:
        """The session that is its own."""
        return f"s-{self.token}"


class MemberIdCodec:
    """Makes texts of ids, and ids of texts.

    Args:
        key: what all gateways of one Redis share.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key

    def text(self, member: MemberId, client: str) -> str:
        """The id as `client` gets it: letters, digits, ``-`` and ``_``."""
        token, filter = bytes.fromhex(member.token), member.shared.filter.encode()
        whole = self._sign(token, client, member.shared.group, filter) + token + filter
        return base64.urlsafe_b64encode(whole).rstrip(b"=").decode()

    def parse(self, text: str, group: str, client: str) -> MemberId:
        """The id that :meth:`text` made for that group and client.

        Raises:
            UnknownMember: it did not.
        """
        try:
            if len(text) > LONGEST_ID:
                raise ValueError("length")
            raw = base64.b64decode(text.encode("ascii") + b"=" * (-len(text) % 4), b"-_", validate=True)
            signature, rest = raw[:SIGNATURE_BYTES], raw[SIGNATURE_BYTES:]
            token, filter = rest[:TOKEN_BYTES], rest[TOKEN_BYTES:]
            if len(token) == TOKEN_BYTES and hmac.compare_digest(
                self._sign(token, client, group, filter), signature
            ):
                return MemberId(token.hex(), SharedSubscription(group, filter.decode()))
        except (ValueError, binascii.Error):  # also what is no ASCII
            pass
        raise UnknownMember(
            f"{ascii(text)[:80]} is no member of group {ascii(group)[:80]}: join by POST to "
            f"/v1/groups/GROUP/members, and give 'member' of the answer as it was, with the same token"
        )

    def _sign(self, token: bytes, client: str, group: str, filter: bytes) -> bytes:
        parts = (token, client.encode(), group.encode(), filter)
        message = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
        return hmac.new(self._key, message, hashlib.sha256).digest()[:SIGNATURE_BYTES]
