"""From token ids to text, reasons to stop, and function calls."""
