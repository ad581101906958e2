"""--multirun: jobs in processes of their own, and a report on what they left behind."""

from sweeps.sweep import sweep

__all__ = ["sweep"]
