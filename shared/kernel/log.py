"""The one logger. Lambda's entry points give it a JSON formatter; a library call must not configure logging."""

from __future__ import annotations

import logging

logger = logging.getLogger("baton")
