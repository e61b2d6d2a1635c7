"""The public API and the spans: what happened when, on which lane, in which window."""
