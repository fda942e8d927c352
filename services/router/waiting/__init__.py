"""When a request runs: who waits, who goes next, and who would only wait in vain."""
