"""Generated from `proto/triptych/v1` by `make proto`; do not edit."""
