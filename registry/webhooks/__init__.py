"""What Redis knows of webhooks: subscriptions, how far each is, and which gateway may say so."""
