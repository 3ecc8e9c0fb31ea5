"""What Redis keeps of a webhook, parsed."""

from __future__ import annotations

from streamlease.gateway.webhooks.core.subscribing_forms import WebhookDefinition, parse_standing
from streamlease.gateway.webhooks.core.webhook_standing import WebhookStanding
from streamlease.protocol.errors import Unsupported
from streamlease.registry.webhooks.webhook_records import WebhookRecord
from streamlease.streams.redis.damaged import MALFORMED, why


def read_webhook(record: WebhookRecord) -> tuple[WebhookDefinition, WebhookStanding]:
    """What it wants, and how it stands.

    Raises:
        Unsupported: it cannot be read.
    """
    try:
        return WebhookDefinition.model_validate_json(record.definition), parse_standing(record.standing)
    except MALFORMED as error:
        raise Unsupported(
            f"webhook {record.name.id} is damaged, or of a later version ({why(error):.200}): "
            f"delete it, and subscribe again"
        ) from None
