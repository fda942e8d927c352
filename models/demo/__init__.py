"""The pictures and questions of `triptych demo`."""
