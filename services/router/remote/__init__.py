"""Pictures behind http and https URLs: what may be fetched, the fetching, and what is remembered of it."""
