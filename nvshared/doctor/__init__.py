# SPDX-License-Identifier: Apache-2.0
"""What is wrong with nvshared on this machine, and what to do about it.

    for finding in examine("system").findings:
        print(finding.grade, finding.topic, finding.words, finding.advice)

Each module looks at one thing and needs none of the others to work: with the
daemon down, without a bus or without a driver there is only more to find.
"""

from nvshared.doctor.examination import Examination, examine
from nvshared.doctor.finding import Finding, Grade

__all__ = ["Examination", "Finding", "Grade", "examine"]
