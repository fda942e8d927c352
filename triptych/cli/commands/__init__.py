"""The sub-commands' options, a module each; what they do is in `triptych.cli`."""
