"""What the language-side workers, prefill and decode, have in common: settings, loading, the step loop, the process."""
