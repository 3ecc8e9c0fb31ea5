"""How many files this process may open: each connection is one.

Systems let a process open 1,024 unless it asks for more, for the sake of programs that use ``select``. This
one does not, so it takes all that it may have.
"""

from __future__ import annotations

import logging
import resource

from streamlease.gateway.core.rates import GatewayLimits

BESIDE_POLLS = 1_500
"""Connections to callbacks, to Redis and to other gateways, requests that wait for nothing, and files."""

MOST = 1 << 20
"""Where the system knows no limit."""

_logger = logging.getLogger(__name__)


def open_all_that_may_be(limits: GatewayLimits) -> int:
    """Raise the limit of open files to the hard one, and warn if that is too low for `limits`.

    Returns:
        What it is now.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST if hard == resource.RLIM_INFINITY else hard
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    needed = limits.open_polls + BESIDE_POLLS
    if soft != resource.RLIM_INFINITY and soft < needed:
        _logger.warning(
            "gateway: this process may open %d files, and %d polls may be open at once: raise the hard limit "
            "to %d (ulimit -Hn, LimitNOFILE= of systemd, --ulimit of docker), or give a lower --max-polls",
            soft, limits.open_polls, needed,
        )  # fmt: skip
    return soft
