"""What earlier requests asked, and where a later one stopped being their continuation."""
