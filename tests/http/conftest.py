"""Gateways, as those of tests/gateway."""

from __future__ import annotations

from tests.gateway.conftest import client, gateway, start_gateway

__all__ = ["client", "gateway", "start_gateway"]
