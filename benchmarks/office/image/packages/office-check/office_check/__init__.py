"""What verifiers of the office world are written with: the state before and after, and things to get right."""

from office_check.check import Check
from office_check.rows import MISSING, Row, Table

__all__ = ["MISSING", "Check", "Row", "Table"]
