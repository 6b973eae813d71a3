"""The routes of jobs, which are tried here though no deployment has them yet."""

from shared.job_queue.api import router

__all__ = ["router"]
