"""The scripts by which shells ask for `candidates`, and where each is installed."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path

# Bash splits words at colons and equals signs, and wants only what follows the last one.
_BASH = """\
_distrun() {
    local line=${COMP_LINE:0:COMP_POINT} words word
    read -ra words <<<"$line"
    [[ $line == *[[:space:]] ]] && words+=("")
    word=${words[-1]}
    mapfile -t COMPREPLY < <("${words[0]}" completion bash --words -- "${words[@]:1}" 2>/dev/null)
    [[ $word == *[:=]* ]] && COMPREPLY=("${COMPREPLY[@]#"${word%"${word##*[:=]}"}"}")
}
complete -o bashdefault -o default -F _distrun distrun
"""
_ZSH = """\
#compdef distrun
_distrun() {
    local -a found
    found=("${(@f)$(${~words[1]} completion zsh --words -- "${(@Q)words[2,CURRENT-1]}" "$PREFIX" 2>/dev/null)}")
    if [[ -n $found ]]; then
        _describe distrun found
    else
        _default
    fi
}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    _distrun "$@"
else
    (( $+functions[compdef] )) || { autoload -Uz compinit && compinit -i }
    compdef _distrun distrun
fi
"""
_FISH = """\
function __distrun_words
    set -l words (commandline -opc) (commandline -ct)
    set -l program $words[1]
    set -e words[1]
    set -l found ($program completion fish --words -- $words 2>/dev/null)
    if set -q found[1]
        printf '%s\\n' $found
    else
        __fish_complete_path (commandline -ct)
    end
end
complete --command distrun --no-files --arguments '(__distrun_words)'
"""
SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}


def answer(shell: str, words: Mapping[str, str]) -> str:
    """Return candidates with their meanings as the script of a shell expects them."""
    if shell == "zsh":
        lines = [word.replace(":", r"\:") + (f":{meaning}" if meaning else "") for word, meaning in words.items()]
    elif shell == "fish":
        lines = [word + (f"\t{meaning}" if meaning else "") for word, meaning in words.items()]
    else:
        lines = [*words]
    return "".join(f"{line}\n" for line in lines)


def install(shell: str) -> str:
    """Write a shell's script to where it finds it, for this user, and return a sentence about that.

    Raises:
        OSError: that is not possible.
    """
    home = Path.home()
    data = Path(os.environ.get("XDG_DATA_HOME") or home / ".local/share")
    config = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
    path = {
        "bash": data / "bash-completion/completions/distrun",
        "zsh": data / "distrun/completion.zsh",
        "fish": config / "fish/completions/distrun.fish",
    }[shell]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(SCRIPTS[shell])
    if shell == "zsh":
        return f"{path} is written, and {_read_by_zsh(path)} reads it: open a new zsh"
    needs = ", which needs the package bash-completion, or source the file" if shell == "bash" else ""
    return f"{path} is written: open a new {shell}{needs}"


def _read_by_zsh(script: Path) -> Path:
    """Have zsh, which has no folder for the functions of a user, read a script when it starts."""
    settings = Path(os.environ.get("ZDOTDIR") or Path.home()) / ".zshrc"
    line = f"source {shlex.quote(str(script))}\n"
    text = settings.read_text(errors="surrogateescape") if settings.exists() else ""
    if line not in text:
        with settings.open("a") as file:
            file.write(("\n" if text and not text.endswith("\n") else "") + line)
    return settings
