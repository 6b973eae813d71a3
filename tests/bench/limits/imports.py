"""The bare limit of a cold start: exactly the libraries that a step stands on. Never changed together with product code."""

from __future__ import annotations

import boto3
import pg8000.dbapi
import pydantic
import sqlalchemy
from aws_lambda_powertools.utilities import batch

__all__ = ["batch", "boto3", "pg8000", "pydantic", "sqlalchemy"]
