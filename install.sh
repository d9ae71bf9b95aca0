#!/usr/bin/env bash
# Sets up rlcheck in a virtual environment of its own and runs it. `./install.sh --help` says more.
set -euo pipefail
# uv compiles nothing: what is imported is compiled then, once, also where the shell would have Python not do it.
unset CDPATH PYTHONDONTWRITEBYTECODE

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
STACKS=$ROOT/rlcheck/data/stacks
COMMAND='' ENGINE=vllm STACK='' VENV=$ROOT/.venv OFFLINE='' PYTHON=''

usage() {
  cat <<'TEXT'
Usage: ./install.sh demo|test [options]

  demo   install what fits this machine into .venv, examine the machine (rlcheck env), and where the stack can train,
         train a toy: rltrain run toy-ppo. Its files go to runs/rltrain/toy-ppo below the current directory; an
         earlier run there is kept as toy-ppo.1 and so on
  test   install the CPU stack and the test tools into .venv, then run the whole test suite

Options:
  --doctor-only     the doctor alone: no PyTorch, Ray or vLLM, no training (Python 3.10 or newer, Linux or macOS)
  --engine NAME     rollout engine to install: vllm (default) or none; with none, demo trains nothing
  --venv DIR        where the environment goes (default: .venv beside this script)
  --python PATH     the Python to build it with (default: the first on PATH that fits)
  --offline DIR     take every package from this directory of wheels, none from a registry
  --help            this text

Stacks (exact versions: rlcheck/data/stacks/*.txt): cuda-vllm on Linux x86-64 with an NVIDIA GPU and driver 580 or
newer, cpu on any other Linux x86-64, doctor elsewhere and for --doctor-only. uv installs, from the package sources that
pip is configured for; pip where uv cannot. All files of the installation go below the environment's directory. A second
run with nothing changed installs nothing.
To fill a directory for --offline, on a machine with the same Python and a network:
  python3 -m pip download --no-deps -d DIR -r rlcheck/data/stacks/cpu.txt -r rlcheck/data/stacks/build.txt
For test, also: -r rlcheck/data/stacks/dev.txt. Where PyTorch's CPU build is in no package source of yours, also:
  --extra-index-url https://download.pytorch.org/whl/cpu
TEXT
}

say() { printf '%s\n' "$*"; }
complain() { printf 'install.sh: %s\n' "$*" >&2; }
die() { complain "$*" && exit 1; }
misuse() { complain "$* (./install.sh --help lists the options)" && exit 2; }

parse_arguments() {
  while [ $# -gt 0 ]; do
    case $1 in --?*=*) set -- "${1%%=*}" "${1#*=}" "${@:2}" ;; esac
    case $1 in --engine | --venv | --offline | --python) [ -n "${2:-}" ] || misuse "$1 needs a value" ;; esac
    case $1 in
      demo | test) [ -z "$COMMAND" ] || misuse "one command at a time, not both $COMMAND and $1" && COMMAND=$1 ;;
      --doctor-only) STACK=doctor ;;
      -h | --help) usage && exit ;;
      --engine) case $2 in vllm | none) ENGINE=$2 ;; *) misuse "--engine takes vllm or none, not '$2'" ;; esac ;;
      --venv) case $2 in /*) VENV=$2 ;; *) VENV=$PWD/$2 ;; esac ;;
      --python) PYTHON=$2 ;;
      --offline) OFFLINE=$(cd "$2" 2>/dev/null && pwd -P) || misuse "--offline: no directory '$2'" ;;
      *) misuse "unknown argument '$1'" ;;
    esac
    case $1 in --engine | --venv | --offline | --python) shift ;; esac
    shift
  done
  [ -n "$COMMAND" ] || misuse 'say what to do: demo or test'
}

header() { sed -n "s/^#: $2 //p" "$STACKS/$1.txt"; } # header STACK KEY: the values of the lock's lines "#: KEY value"
at_least() { [ "$(printf '%s\n' "$1" "$2" | sort -V | head -n 1)" = "$2" ]; } # at_least VERSION FLOOR

choose_stack() {
  local machine glibc driver=''
  machine="$(uname -s) $(uname -m)"
  case $machine in MINGW* | MSYS* | CYGWIN*) die "Windows is not supported: run this inside WSL 2." ;; esac
  [ -z "$STACK" ] || return 0
  STACK=cpu
  if [ "$machine" != "$(header cpu platform)" ]; then
    no_training "PyTorch and vLLM are locked for Linux x86-64 only, this is $machine"
  elif ! glibc=$(getconf GNU_LIBC_VERSION 2>/dev/null); then
    no_training "PyTorch and vLLM need glibc, this system has another C library (musl?)"
  elif [ "$COMMAND" = demo ] && [ -e /dev/kfd ]; then
    say 'Note: AMD GPU found, and there is no ROCm stack. Installing the CPU stack: training will not use the GPU.'
  elif [ "$COMMAND" = demo ] && driver=$(nvidia_driver) && at_least "$driver" "$(header cuda-vllm driver)"; then
    STACK=cuda-vllm
  elif [ -n "$driver" ]; then
    say "Note: NVIDIA driver $driver is older than $(header cuda-vllm driver), which the CUDA stack needs. Installing" \
      'the CPU stack: training will not use the GPU. To use it, update the driver and run this again.'
  fi
  [ "$STACK" = doctor ] || at_least "${glibc##* }" "$(header "$STACK" glibc)" ||
    no_training "the $STACK stack needs glibc $(header "$STACK" glibc), this system has ${glibc##* }"
}

no_training() {
  [ "$COMMAND" = demo ] || die "$1. ./install.sh test --doctor-only runs the tests that need neither."
  say "Note: $1. Installing the doctor alone."
  STACK=doctor
}

nvidia_driver() { # prints the driver's version; fails where no NVIDIA GPU is usable from here
  compgen -G '/dev/nvidia[0-9]*' >/dev/null || [ -e /dev/dxg ] || return 1
  { driver_in_proc </proc/driver/nvidia/version ||
    timeout 20 nvidia-smi --query-gpu=driver_version --format=csv,noheader | head -n 1; } 2>/dev/null | grep .
}

# "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Wed …": prints 580.95.05
driver_in_proc() { sed -n 's/^NVRM version:.* \([0-9][0-9]*\.[0-9][0-9.]*\) .*/\1/p'; }

describe_python() { # prints "3.12 PROBLEM /path/to/python", PROBLEM being ok, build or venv
  "$1" -I -c '
import importlib.util, struct, sys, sysconfig
problem = "ok"
if sys.implementation.name != "cpython" or struct.calcsize("P") != 8 or sysconfig.get_config_var("Py_GIL_DISABLED"):
    problem = "build"
elif not importlib.util.find_spec("venv") or not importlib.util.find_spec("ensurepip"):
    problem = "venv"
print("%d.%d" % sys.version_info[:2], problem, sys.executable)' 2>/dev/null
}

choose_python() { # sets PYTHON to the full path of one that fits, or says what is wrong with those that are there
  local candidates=(python3 python3.12 python3.11 python3.13 python3.10 python3.14 python)
  local candidate version problem path seen='' no_venv='' wanted other=''
  wanted=$(header "$STACK" python)
  [ "$STACK $COMMAND" != 'doctor test' ] || wanted=$(header dev python)
  [ -z "$PYTHON" ] || candidates=("$PYTHON")
  for candidate in "${candidates[@]}"; do
    read -r version problem path < <(describe_python "$candidate") || continue
    case " $wanted $problem" in
      *" $version "*ok) PYTHON=$path && return ;;
      *" $version "*venv) no_venv=${no_venv:-$version $path} ;;
      *build) version="$version (not a standard 64-bit CPython)" ;;
    esac
    seen="$seen${seen:+, }$candidate is $version"
  done
  [ -z "$no_venv" ] || die "${no_venv#* } has no venv module. Debian, Ubuntu: apt install python${no_venv%% *}-venv."
  [ -z "$PYTHON" ] || [ -n "$seen" ] || die "--python $PYTHON does not start. Name a Python of version ${wanted// /, }."
  [ "$STACK" = doctor ] || other=" Or, without training: --doctor-only (Python $(header doctor python))."
  die "the $STACK stack needs Python ${wanted// /, }; ${seen:-there is no python3 on PATH}." \
    "Install one of these (Debian and Ubuntu: python3 and python3-venv) or name it: --python PATH.$other"
}

# $STATE, the environment's directory .rlcheck, says whose it is, how far it got and what is in it.
must_build() { # fails where the environment can be used as it is; dies where it is not ours to touch
  [ -n "$(ls -A "$VENV" 2>/dev/null)" ] || return 0
  [ -d "$STATE" ] ||
    die "$VENV exists and was not made by this script. Move it away, or put this environment elsewhere: --venv DIR."
  local state='' pid='' host=''
  read -r state pid host 2>/dev/null <"$STATE/state" || true
  # A later user of the other run's process number is no other run.
  if [ "$state $host" = "building $(uname -n)" ] && ps -p "$pid" -o args= 2>/dev/null | grep -qF install.sh; then
    die "another run (process $pid) is building $VENV. Wait for it, or use --venv DIR."
  elif [ "$state" != ready ]; then
    say "$VENV is half-made (an earlier run did not finish): building it anew."
  elif ! "$VENV/bin/python" -I -m pip --version >/dev/null 2>&1; then
    say "$VENV has a Python that no longer works: building it anew."
  elif [ -n "$PYTHON" ] && [ "$(describe_python "$PYTHON" | cut -d' ' -f3-)" != "$(cat "$STATE/python")" ]; then
    say "$VENV was built with $(cat "$STATE/python"): building it anew with $PYTHON."
  elif ! lock_lines "$STACK" | cmp -s - "$STATE/base.txt"; then
    say "$VENV does not hold what the $STACK stack asks for: building it anew."
  else
    return 1
  fi
}

lock_lines() { # the pins of stack $1, less the engine's where it is not wanted
  if [ "$ENGINE" = none ]; then sed '/^#: section engine$/,$d' "$STACKS/$1.txt"; else cat "$STACKS/$1.txt"; fi |
    sed '/^#/d'
}

check_disk() {
  local need free held place=$VENV
  need=$(header "$STACK" needs-mib)
  [ "$COMMAND" = demo ] || need=$((need + $(header dev needs-mib)))
  while [ ! -d "$place" ]; do place=$(dirname "$place"); done
  free=$(df -Pk "$place" 2>/dev/null | awk 'NR == 2 { print int($4 / 1024) }') || true
  held=$(du -sk "$VENV" 2>/dev/null | awk '{ print int($1 / 1024) }') || true
  [ -z "$free" ] || [ $((free + ${held:-0})) -ge "$need" ] ||
    die "the $STACK stack needs $need MiB free, $place has $free MiB." \
      'Free some space, put the environment on another disk (--venv DIR), or leave PyTorch out (--doctor-only).'
}

build_environment() {
  { mkdir -p "$VENV" && VENV=$(cd "$VENV" && pwd -P) && STATE=$VENV/.rlcheck && mkdir -p "$STATE" && mark_building &&
    find "$VENV" "$STATE" -mindepth 1 -maxdepth 1 ! -name .rlcheck ! -name state -exec rm -rf {} +; } 2>/dev/null ||
    die "cannot write in $VENV. Put the environment elsewhere: --venv DIR."
  say "Making $VENV with $PYTHON"
  "$PYTHON" -I -m venv --prompt rlcheck "$VENV" >"$STATE/install.log" 2>&1 ||
    die "$PYTHON could not make an environment: $(tail -n 1 "$STATE/install.log") (log: $STATE/install.log)"
  say "$PYTHON" >"$STATE/python"
}

mark_building() { say "building $$ $(uname -n)" >"$STATE/state"; }
fetch() { "$VENV/bin/python" -I "$STACKS/fetch.py" "$1" "$OFFLINE" "${@:2}"; } # fetch STACK PIP-INSTALL-ARGUMENT…

install_lock() { # install_lock STACK RECORD: does nothing where RECORD says that these very pins are installed
  local pins=$STATE/$2.txt
  if lock_lines "$1" | cmp -s - "$pins"; then return; fi
  mark_building
  lock_lines "$1" >"$pins.new"
  say "Installing the $1 stack: $(cut -d= -f1 "$pins.new" | sort -u | grep -c .) packages, up to" \
    "$(header "$1" needs-mib) MiB of disk (log: $STATE/install.log)"
  fetch "$1" --only-binary :all: -r "$pins.new"
  mv "$pins.new" "$pins"
}

install_project() { # a copy for users, the tree itself for its developers
  local parts=(pyproject.toml) editable=--editable print
  [ "$COMMAND" = test ] || parts+=(rlcheck trainer playbooks) editable=''
  print=$(cd "$ROOT" && find "${parts[@]}" -type f ! -name '*.pyc' -exec cksum {} + | LC_ALL=C sort | cksum)
  if [ "$COMMAND $ROOT $print" = "$(cat "$STATE/project" 2>/dev/null)" ]; then return; fi
  rm -f "$STATE/project"
  fetch build --force-reinstall $editable "$ROOT"
  say "$COMMAND $ROOT $print" >"$STATE/project"
}

run_demo() {
  local status=0 trains=''
  [ "$STACK" = doctor ] || [ "$ENGINE" = none ] || trains=yes
  "$VENV/bin/rlcheck" env || status=$?
  [ "$status" -le 1 ] || die "rlcheck itself failed (exit code $status)."
  [ "$status" = 0 ] || say 'rlcheck found problems on this machine (above). The installation itself is complete.'
  say "Installed. Next: source $VENV/bin/activate, then rlcheck --help${trains:+ and rltrain --help}"
  if [ "$status$trains" = 1yes ]; then
    say 'The toy run is left out: its preflight would stop at the failed checks above. Fix them and run this again,' \
      'or accept one of them: rltrain run toy-ppo --ignore ID'
  elif [ -n "$trains" ]; then
    say "Training a toy: rltrain run toy-ppo (its files: $PWD/runs/rltrain/toy-ppo)"
    # In place of this shell: Ctrl-C, SIGTERM and the exit code are the trainer's own.
    PATH="$VENV/bin:$PATH" exec "$VENV/bin/rltrain" run toy-ppo
  fi
}

run_tests() {
  local check output failed=''
  cd "$ROOT"
  export PATH="$VENV/bin:$PATH" PYRIGHT_PYTHON_IGNORE_WARNINGS=1 PYRIGHT_PYTHON_CACHE_DIR="$STATE/pyright"
  for check in 'ruff check .' 'ruff format --check .' pyright lint-imports; do
    # The output of a check is shown only where it fails.
    if output=$($check 2>&1); then say "ok: $check" && continue; fi
    printf '%s\nFAILED: %s\n' "$output" "$check"
    failed="$failed${failed:+, }$check"
  done
  [ -z "$failed" ] || say "FAILED before the tests: $failed"
  # By the groups of tests/conftest.py, three side by side. What fails is tried once more, and named: machines may be busy.
  "$VENV/bin/python" -m pytest -m 'not gpu and not long' -n 3 --dist loadscope --reruns 1 --reruns-delay 2 -rsR && [ -z "$failed" ]
}

main() {
  parse_arguments "$@"
  choose_stack
  STATE=$VENV/.rlcheck
  trap 'complain "interrupted. Run it again: what is half-made is built anew."; exit 130' INT TERM
  if must_build; then
    choose_python
    check_disk
    build_environment
  fi
  install_lock "$STACK" base
  [ "$COMMAND" = demo ] || install_lock dev dev
  install_project
  say ready >"$STATE/state"
  if [ "$COMMAND" = demo ]; then run_demo; else run_tests; fi
}

if [ "${BASH_SOURCE[0]}" = "$0" ]; then main "$@"; fi # sourced, the functions can be tried one by one
