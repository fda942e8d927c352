"""A request on its way through the workers, and on to others when some are lost."""
