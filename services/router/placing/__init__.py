"""Where a request runs: what is known of the workers, and the choice among them."""
