# SPDX-License-Identifier: Apache-2.0
"""The table of terms: the scheduler has its fields, and a term that is added needs no other place.
"""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

from nvshared.names import TERM_SOURCES
from nvshared.scheduler.events import Priority, TenantTerms, Terms
from nvshared.terms import CLIENT_TERMS, TERMS

ROOT = Path(__file__).parents[2]


def test_scheduler_has_a_field_with_the_same_default_for_each_term() -> None:
    of_tenants = {one.name: one.default for one in fields(TenantTerms) if one.name != "shown"}
    assert of_tenants == {term.field: term.default for term in TERMS.values()}
    of_clients = {one.name: one.default for one in fields(Terms)}
    # A client's own priority is the highest by default: its tenants' may be lower.
    assert of_clients == {term.field: term.default for term in CLIENT_TERMS} | {
        "priority": Priority.HIGH}


def test_description_of_set_tenant_terms_names_each_source_of_terms() -> None:
    text = (ROOT / "dbus/com.nvshare.Manager.xml").read_text()
    description = text.partition("SetTenantTerms:\n")[2].partition("<method")[0]
    assert [source for source in TERM_SOURCES if f'"{source}"' not in description] == []


# Each place that a new term of clients and tenants touches: the file, a line, and what is added
# above that line. The scheduler's use of the term comes to these.
PLACES = [
    ("nvshared/terms.py", ")}\nCLIENT_TERMS", '''
    Term("patience", Unit("MINUTES", 60, "1 to 60 minutes", quantity.positive,
         "{} minutes".format, "{}min".format), 0, "how patient the programs are",
         "The patience of {name} is {value}", "The patience of {name}{on} is {value}", "none", "p",
         option="--patience", annotation="patience", stricter=max,
         bound="the administrator has set {}"),
'''),
    ("nvshared/scheduler/events.py", "    compute_limit: int = UNLIMITED ",
     "    patience: int = 0\n"),
]
CHECK = '''
import sys
from pathlib import Path

from dbus_next.signature import Variant

from nvshared.bus.services import ClientInterface
from nvshared.cli.main import VERBS, build
from nvshared.kubelet.annotations import requested_terms
from nvshared.kubelet.claims import NOTES
from nvshared.settings.config import load
from nvshared.settings.state import _term
from nvshared.sharing.client_terms import ClientTerms
from nvshared.sharing.remembered import _terms
from nvshared.sharing.tenancy import Tenancy
from nvshared.terms import TERMS
from nvshared.tui import tables

term = TERMS["patience"]
file = Path(sys.argv[1])
file.write_text("[tenant user:*]\\npatience = 20\\n[tenant user:7]\\npatience = none\\n")
rules = load(file, {}, {}).rules
assert [one.value for one in rules] == [20, 0]
tenancy = Tenancy()
tenancy.use(rules)
assert tenancy.terms("job:4").patience == 0
tenancy.set_terms("job:4", {"patience": 5})
assert tenancy.terms("job:4").patience == 5
assert _term("patience", 5) == (5, "")
made = ClientTerms().having(term, 30, by_owner=False)
assert made.in_force.patience == 30 and not made.allows(term, 3)
assert made.bound(term, 3) == "the administrator has set 30 minutes"
assert _terms({"patience": 30}).patience == 30
options = build(VERBS).parse_args(["limit", "4711", "--patience", "30"])
assert options.patience == 30
class Client:
    terms = made
one = ClientInterface(None, Client())
assert one.values(["Terms"])["Terms"].value["patience"] == Variant("t", 30)
assert tables.limits({"patience": 30}) == "p30min"
assert tables.program_sentence("process 7", "patience", 30, None) == (
    "The patience of process 7 is 30 minutes.")
assert "patience" in NOTES
assert requested_terms({"nvshare.com/patience": "9"}, None)["patience"].parse("9") == 9
'''


def test_new_term_touches_at_most_five_places_and_appears_everywhere(tmp_path: Path) -> None:
    for folder in ("nvshared", "packaging/man", "dbus"):
        shutil.copytree(ROOT / folder, tmp_path / folder,
                        ignore=shutil.ignore_patterns("__pycache__"))
    for name, line, text in PLACES:
        file = tmp_path / name
        before = file.read_text()
        assert before.count(line) == 1
        file.write_text(before.replace(line, text.lstrip("\n") + line))
    assert len(PLACES) <= 5

    def run(*arguments: str) -> str:
        ended = subprocess.run(
            [sys.executable, *arguments], check=False, text=True, capture_output=True,
            cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path), "COLUMNS": "80"})
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    run("-c", CHECK, str(tmp_path / "nvshared.conf"))
    main = "from nvshared.cli.main import main; main(['limit', '--help'])"
    assert re.search(r"--patience MINUTES\s+how patient", run("-c", main))
    page = run("packaging/man/page.py", "packaging/man/nvshared.conf.5.in", "1", "/lib")
    assert r"\fBpatience = MINUTES|none\fR" in page
