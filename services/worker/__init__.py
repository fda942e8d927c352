"""Several stages in one process, for deployments that do not split them: E/PD and the monolith.

The only service that imports others: it composes their stages and adds nothing to what they do.
"""
