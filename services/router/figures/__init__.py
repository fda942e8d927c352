"""What requests cost: accounts, metrics and spans."""
