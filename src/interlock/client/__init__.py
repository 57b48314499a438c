"""Control's verbs from afar, over the gateway."""
