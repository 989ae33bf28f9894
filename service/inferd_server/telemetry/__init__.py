"""EYES: logs, metrics, tracing."""
