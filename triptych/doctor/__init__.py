"""Examines a running deployment: facts come in from outside, findings go out, and each says what to fix."""

from triptych.doctor.examination import Site, examine
from triptych.doctor.finding import Finding, exit_status

__all__ = ["Finding", "Site", "examine", "exit_status"]
