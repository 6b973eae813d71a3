"""A parser that helps: what was probably meant, and what could come next on the command line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from typing import Any, NoReturn

Subparsers = argparse._SubParsersAction  # argparse has no other name for it


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        end = "" if message.endswith("?") else "."
        print(f"baton: {message}{end} See `{self.prog} --help`", file=sys.stderr)
        raise SystemExit(2)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        known = [str(each) for each in action.choices]
        if isinstance(action, Subparsers):
            raise argparse.ArgumentError(None, f"unknown command {value!r}{meant(str(value), known) or _all(known)}")
        raise argparse.ArgumentError(action, f"unknown value {value!r}. Available: {', '.join(known)}")

    def understood(self, words: Sequence[str]) -> argparse.Namespace:
        """As `parse_args`, but an option that nobody knows gets a suggestion too."""
        options, unknown = self.parse_known_args(words)
        if unknown:
            leaf = walked(self, words)[0]
            known = [name for action in leaf._actions for name in action.option_strings if name.startswith("--")]
            what = "option" if unknown[0].startswith("-") else "argument"
            if unknown[0].partition("=")[0] in known:
                leaf.error(f"{unknown[0]} belongs after the command: `{leaf.prog} {unknown[0]}`")
            leaf.error(f"unknown {what} {unknown[0]!r}{meant(unknown[0].partition('=')[0], known)}")
        return options


def meant(given: str, known: Iterable[str]) -> str:
    close = get_close_matches(given, list(known), n=1, cutoff=0.6)
    return f". Did you mean {close[0]!r}?" if close else ""


def _all(known: Sequence[str]) -> str:
    return f". Available: {', '.join(known)}" if len(known) <= 20 else ""


def commands_of(parser: argparse.ArgumentParser) -> dict[str, str]:
    """The commands right below, each with its help; an alias is none."""
    (below,) = (action for action in parser._actions if isinstance(action, Subparsers))
    return {each.dest.split(" ")[0]: each.help or "" for each in below._choices_actions}


def walked(parser: argparse.ArgumentParser, words: Iterable[str]) -> tuple[argparse.ArgumentParser, list[str]]:
    """The command that these words lead to, and the words that came after it."""
    rest: list[str] = []
    for word in words:
        below = next((action for action in parser._actions if isinstance(action, Subparsers)), None)
        if below is not None and word in below.choices and not rest:
            parser = below.choices[word]
        elif not (word.startswith("-") and below is not None):
            rest.append(word)
    return parser, rest


def next_words(parser: argparse.ArgumentParser, words: Sequence[str]) -> Iterator[str]:
    """What can follow, for a shell that completes: `words` end with the one that is being typed."""
    *before, typed = words or [""]
    command, _ = walked(parser, before)
    found: list[str] = []
    waits_for = [action for action in command._actions if before and before[-1] in action.option_strings]
    if waits_for and waits_for[0].nargs != 0:
        found = [str(each) for each in waits_for[0].choices or ()]
    else:
        for action in command._actions:
            if isinstance(action, Subparsers) or (not action.option_strings and action.choices):
                found += [str(each) for each in action.choices or ()]
            elif typed.startswith("-"):
                found += [name for name in action.option_strings if name.startswith("--")]
    return (word for word in sorted(found) if word.startswith(typed))


SCRIPTS = {
    "bash": """_baton() {
  local IFS=$'\\n'
  COMPREPLY=($(baton complete -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o default -F _baton baton
""",
    "zsh": """#compdef baton
_baton() {
  local -a found
  found=("${(@f)$(baton complete -- "${(@)words[2,CURRENT]}" 2>/dev/null)}")
  if [[ -n "$found[1]" ]]; then compadd -a found; else _files; fi
}
compdef _baton baton
""",
    "fish": """complete -c baton -f -a '(baton complete -- (commandline -opc)[2..-1] (commandline -ct) 2>/dev/null)'
""",
}
