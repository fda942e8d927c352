"""The cache laboratory: controlled experiments on the two caches of a running cluster, with an exact prediction."""
