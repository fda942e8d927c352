"""Who may ask, and how much: API keys, tenants and quotas."""
