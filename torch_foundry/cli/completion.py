"""`torch-foundry completion`: what a shell completes, to be evaluated by it when it starts."""

from __future__ import annotations

import argparse
from typing import Any

BASH = """\
_torch_foundry() {
  local word=${COMP_WORDS[COMP_CWORD]} all=%(commands)s
  if [ "$COMP_CWORD" -gt 1 ]; then
    case ${COMP_WORDS[1]} in
%(cases)s
      *) all="" ;;
    esac
  fi
  if [ "$COMP_CWORD" -gt 1 ] && [ "${word#-}" = "$word" ]; then
    local folder
    for folder in "${HF_HUB_CACHE:-${HF_HOME:-$HOME/.cache/huggingface}/hub}"/models--*/snapshots; do
      folder=${folder%%/snapshots} folder=${folder##*/models--}
      case $folder in '*') ;; *) all="$all ${folder/--//}" ;; esac
    done
  fi
  local IFS=$'\\n'
  COMPREPLY=($(IFS=' '; compgen -W "$all" -- "$word"; [ "$COMP_CWORD" -eq 1 ] || compgen -f -- "$word"))
}
complete -o filenames -F _torch_foundry torch-foundry
"""
ZSH = "autoload -Uz compinit bashcompinit && compinit && bashcompinit\n"
HOW = """for bash, in ~/.bashrc: eval "$(torch-foundry completion bash)"; for zsh the same with zsh, in ~/.zshrc"""


def add_parser(commands: Any) -> None:
    """Register the subcommand."""
    parser = commands.add_parser("completion", help="shell completion", description=__doc__, epilog=HOW)
    parser.add_argument("shell", choices=["bash", "zsh"])
    parser.set_defaults(run=lambda args: run(args, commands.choices))


def run(args: argparse.Namespace, parsers: dict[str, argparse.ArgumentParser]) -> int:
    """Print the script. parsers: of the subcommands, by name."""
    cases = []
    for name, parser in parsers.items():
        words: list[str] = []
        for action in parser._actions:
            words += [option for option in action.option_strings if option.startswith("--")]
            words += [str(choice) for choice in action.choices or ()]
        cases.append(f'      {name}) all="{" ".join(words)}" ;;')
    script = BASH % {"commands": f'"{" ".join(parsers)}"', "cases": "\n".join(cases)}
    print(ZSH + script if args.shell == "zsh" else script, end="")
    return 0
