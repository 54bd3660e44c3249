# SPDX-License-Identifier: Apache-2.0
"""Reads the settings: files, environment variables and the command line, into one Config.

After a wrong line the reader goes on, so that it can report all errors at once.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from nvshared.errors import ConfigError, InvalidArgs
from nvshared.settings import rules
from nvshared.settings.config import DEFAULT_FILE, Config, Option, options
from nvshared.settings.rules import TERMS, Rule, Term

SECTIONS = "{} [gpu], [nvshared] or [tenant PATTERN]"


def load(file: Path | None, environment: Mapping[str, str], given: Mapping[str, str]) -> Config:
    """Reads all settings. `given`: options of the command line, by name.

    `file` None stands for the default one, which need not exist. Raises
    ConfigError naming file and line or variable, InvalidArgs for the command line.
    """
    path = file or DEFAULT_FILE
    files = _Files()
    for one in [path] * (file is not None or _is_there(path)) + drop_ins(path):
        files.read(one)
    wrong = [*files.wrong, *rules.contradictions(files.rules)]
    if wrong:
        raise wrong[0] if len(wrong) == 1 else ConfigError("\n".join(map(str, wrong)))
    values, places = files.values, files.places
    for option in options():
        text = environment.get(option.variable, "") if option.variable else ""
        if text:
            place = places[option.name] = f"the variable {option.variable}"
            parse = option.variable_parse or option.parse
            values[option.name] = _parse(parse, text, place, ConfigError)
        if option.name in given:
            places.pop(option.name, None)       # no place: errors name the option
            values[option.name] = _parse(
                option.parse, given[option.name], f"--{option.name}", InvalidArgs
            )
    named = {name.replace("-", "_"): value for name, value in values.items()}
    return Config(**named, places=places, rules=tuple(files.rules))


def drop_ins(path: Path) -> list[Path]:
    """The drop-ins of a settings file, in the order of reading. Raises ConfigError."""
    folder = path.with_name(path.name + ".d")
    try:
        return sorted(one for one in folder.iterdir() if one.name.endswith(".conf"))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise ConfigError(f"{folder} cannot be read: {error.strerror}") from None


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None


class _Files:
    """The merged settings of several files; later files override earlier ones."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.places: dict[str, str] = {}
        self.rules: list[Rule] = []
        self.wrong: list[ConfigError] = []
        self._known = {(option.section, option.name): option for option in options()}

    def read(self, path: Path) -> None:
        """Reads one more file; appends errors to `wrong`."""
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except OSError as error:
            self.wrong.append(ConfigError(f"{path} cannot be read: {error.strerror}"))
            return
        except UnicodeDecodeError as error:
            self.wrong.append(ConfigError(f"{path} is not text: {error}"))
            return
        section: str | None = ""        # None: an invalid one, whose lines are skipped
        for number, line in enumerate(map(str.strip, lines), 1):
            place = f"{path}:{number}"
            try:
                if line.startswith("["):
                    section = None
                    section = self._section(line, place)
                elif line and line[0] not in "#;" and section is not None:
                    self._set(section, line, place)
            except ConfigError as wrong:
                self.wrong.append(wrong)

    def _section(self, line: str, place: str) -> str:
        section = line[1:-1].strip()
        if line[-1] != "]":
            raise ConfigError(f"{place}: {line!r} is no section", SECTIONS.format("write"))
        known = sorted({section for section, _ in self._known})
        if section not in known and not rules.pattern(section, place):
            raise ConfigError(
                f"{place}: there is no section {line}",
                _meant(section, [*known, f"{rules.SECTION} PATTERN"]),
            )
        return section

    def _set(self, section: str, line: str, place: str) -> None:
        name, equals, text = (part.strip() for part in line.partition("="))
        if not equals:
            raise ConfigError(f"{place}: {line!r} is no setting", "write NAME = VALUE")
        if not section:
            raise ConfigError(
                f"{place}: {name!r} stands in no section", SECTIONS.format("put it below")
            )
        pattern = rules.pattern(section, place)
        option: Option | Term | None = self._known.get((section, name))
        if pattern:
            option = TERMS.get(name)
        if option is None:
            names = [name for where, name in self._known if where == section] or list(TERMS)
            raise ConfigError(f"{place}: [{section}] has no setting {name!r}", _meant(name, names))
        value = _parse(option.parse, text, f"{place}: {name}", ConfigError)
        if pattern:
            self.rules.append(Rule(pattern, name, value, place))
        else:
            self.values[name], self.places[name] = value, place


def _parse(
    parse: Callable[[str], Any], text: str, place: str, error: type[InvalidArgs]
) -> Any:
    try:
        return parse(text)
    except ValueError as wrong:
        raise error(f"{place} cannot be {text!r}", str(wrong)) from None


def _meant(text: str, known: list[str]) -> str:
    import difflib

    close = difflib.get_close_matches(text, known, 1)
    return f"did you mean {close[0]}?" if close else "there are " + ", ".join(known)
