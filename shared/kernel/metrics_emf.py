"""Metrics as lines of CloudWatch's embedded format: kept during an invocation, written at its end."""

from __future__ import annotations

import threading

from aws_lambda_powertools.metrics import EphemeralMetrics, MetricUnit

NAMESPACE = "Baton"
# How such a name ends: every value counts; all other metrics are sums.
_MILLISECONDS = ("Milliseconds", "_ms", "_ewma")
_MEASURED = (*_MILLISECONDS, "_rate", "_sec", "_depth", "_count")
_MOST_VALUES = 99  # Powertools prints by itself at 100, and then warns about the empty rest

Dimensions = tuple[tuple[str, str], ...]


class EmfMeter:
    """One line per set of dimensions. Dimensions name kinds and reasons, never a tenant, a run or a lane."""

    def __init__(self, namespace: str = NAMESPACE) -> None:
        self._namespace = namespace
        self._kept: dict[Dimensions, dict[str, list[float]]] = {}
        self._lock = threading.Lock()  # a worker counts in many threads

    def count(self, metric: str, value: float = 1, /, **dimensions: str) -> None:
        with self._lock:
            values = self._kept.setdefault(tuple(sorted(dimensions.items())), {}).setdefault(metric, [])
            if metric.endswith(_MEASURED) or not values:
                values.append(value)
            else:
                values[0] += value

    def flush(self) -> None:
        with self._lock:
            kept, self._kept = self._kept, {}
        for dimensions, metrics in kept.items():
            for metric, values in metrics.items():
                for start in range(0, len(values), _MOST_VALUES):
                    self._write(dimensions, metric, values[start : start + _MOST_VALUES])

    def _write(self, dimensions: Dimensions, metric: str, values: list[float]) -> None:
        # An empty service: else POWERTOOLS_SERVICE_NAME would add a dimension that no alarm knows of.
        line = EphemeralMetrics(namespace=self._namespace, service="")
        for name, word in dimensions:
            line.add_dimension(name, word)
        unit = MetricUnit.Milliseconds if metric.endswith(_MILLISECONDS) else MetricUnit.Count
        for value in values:
            line.add_metric(str(metric), unit, value)
        line.flush_metrics()
