"""trainctl: a launcher for GPU training jobs with preflight checks. `Reporter` is its public API."""

from trainctl.reporter import Reporter

__version__ = "0.1.0"
__all__ = ["Reporter", "__version__"]
