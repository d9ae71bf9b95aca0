#!/usr/bin/env bash
# Sets up rlcheck in a virtual environment of its own and runs it. `./install.sh --help` tells the rest.
set -euo pipefail
unset CDPATH

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
STACKS=$ROOT/rlcheck/data/stacks

COMMAND='' ENGINE=vllm DOCTOR_ONLY='' VENV=$ROOT/.venv OFFLINE='' PYTHON=''

usage() {
  cat <<'TEXT'
Usage: ./install.sh demo|test [options]

  demo   install what fits this machine into .venv, examine the machine (rlcheck env), and where the
         stack can train, train a toy: rltrain run toy-ppo. Files of the run: runs/rltrain/toy-ppo below
         the current directory; an earlier run there is kept as toy-ppo.1 and so on
  test   install the CPU stack and the test tools into .venv, then run the whole test suite

Options:
  --doctor-only     the doctor alone: no PyTorch, Ray or vLLM (Python 3.10 or newer, Linux or macOS);
                    demo then trains nothing
  --engine NAME     rollout engine to install: vllm (default) or none; with none, demo trains nothing
  --venv DIR        where the environment goes (default: .venv beside this script)
  --python PATH     the Python to build it with (default: the first on PATH that fits)
  --offline DIR     take every package from this directory of wheels, none from a registry
  --help            this text

Stacks (exact versions: rlcheck/data/stacks/*.txt):
  cuda-vllm   Linux x86-64 with an NVIDIA GPU and driver 580 or newer
  cpu         any other Linux x86-64
  doctor      everything else, and --doctor-only

A second run with nothing changed installs nothing. All files of the installation go below the
environment's directory.
To fill a directory for --offline, on a machine with the same Python and a network:
  python3 -m pip download --no-deps -d DIR -r rlcheck/data/stacks/cpu.txt -r rlcheck/data/stacks/build.txt
For test, also: -r rlcheck/data/stacks/dev.txt. Where PyTorch's CPU build is in no package source of yours, also:
  --extra-index-url https://download.pytorch.org/whl/cpu
TEXT
}

say() { printf '%s\n' "$*"; }

die() {
  printf 'install.sh: %s\n' "$*" >&2
  exit 1
}

misuse() {
  printf 'install.sh: %s (./install.sh --help lists the options)\n' "$*" >&2
  exit 2
}

# ---------------------------------------------------------------------------------------------------- arguments

parse_arguments() {
  while [ $# -gt 0 ]; do
    case $1 in
      demo | test)
        [ -z "$COMMAND" ] || misuse "one command at a time, not both $COMMAND and $1"
        COMMAND=$1
        ;;
      --doctor-only) DOCTOR_ONLY=yes ;;
      -h | --help)
        usage
        exit 0
        ;;
      --engine=* | --venv=* | --offline=* | --python=*)
        set_option "${1%%=*}" "${1#*=}"
        ;;
      --engine | --venv | --offline | --python)
        [ $# -ge 2 ] || misuse "$1 needs a value"
        set_option "$1" "$2"
        shift
        ;;
      *) misuse "unknown argument '$1'" ;;
    esac
    shift
  done
  [ -n "$COMMAND" ] || misuse 'say what to do: demo or test'
}

set_option() {
  [ -n "$2" ] || misuse "$1 needs a value"
  case $1 in
    --engine)
      case $2 in vllm | none) ENGINE=$2 ;; *) misuse "--engine takes vllm or none, not '$2'" ;; esac
      ;;
    --venv) VENV=$(absolute "$2") ;;
    --python) PYTHON=$2 ;;
    --offline)
      [ -d "$2" ] || misuse "--offline: no directory '$2'"
      OFFLINE=$(cd "$2" && pwd -P)
      ;;
  esac
}

absolute() {
  case $1 in /*) printf '%s\n' "$1" ;; *) printf '%s/%s\n' "$PWD" "$1" ;; esac
}

# --------------------------------------------------------------------------------------------- which stack fits

header() { # header STACK KEY: the values of the lock file's lines "#: KEY value"
  sed -n "s/^#: $2 //p" "$STACKS/$1.txt"
}

choose_stack() {
  if [ -n "$DOCTOR_ONLY" ]; then
    STACK=doctor
    return
  fi
  local machine
  machine="$(uname -s) $(uname -m)"
  case $machine in
    MINGW* | MSYS* | CYGWIN*) die "Windows is not supported: run this inside WSL 2." ;;
  esac
  STACK=cpu
  if [ "$machine" != "$(header cpu platform)" ]; then
    no_training "PyTorch and vLLM are locked for Linux x86-64 only, this is $machine"
  elif ! glibc_version >/dev/null; then
    no_training "PyTorch and vLLM need glibc, this system has another C library (musl?)"
  elif [ "$COMMAND" = demo ]; then
    choose_gpu_stack
  fi
  if [ "$STACK" != doctor ] && ! at_least "$(glibc_version)" "$(header "$STACK" glibc)"; then
    no_training "the $STACK stack needs glibc $(header "$STACK" glibc), this system has $(glibc_version)"
  fi
}

no_training() {
  [ "$COMMAND" = demo ] || die "$1. ./install.sh test --doctor-only runs the tests that need neither."
  say "Note: $1. Installing the doctor alone."
  STACK=doctor
}

choose_gpu_stack() {
  local driver floor
  floor=$(header cuda-vllm driver)
  if [ -e /dev/kfd ]; then
    say 'Note: AMD GPU found, and this release has no ROCm stack. Installing the CPU stack: training code will not' \
      'use the GPU.'
  elif driver=$(nvidia_driver); then
    if at_least "$driver" "$floor"; then
      STACK=cuda-vllm
    else
      say "Note: NVIDIA driver $driver is older than $floor, which the CUDA stack needs. Installing the CPU stack:" \
        'rlcheck works in full, training code will not use the GPU. Update the driver and run this again for the GPU.'
    fi
  fi
}

nvidia_driver() { # prints the driver's version; fails where no NVIDIA GPU is usable from here
  local node version=''
  for node in /dev/nvidia[0-9]* /dev/dxg; do
    [ -e "$node" ] || continue
    if [ -r /proc/driver/nvidia/version ]; then
      version=$(driver_in_proc </proc/driver/nvidia/version)
    elif command -v nvidia-smi >/dev/null && command -v timeout >/dev/null; then
      version=$(timeout 20 nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -n 1) || true
    fi
    [ -n "$version" ] || return 1
    printf '%s\n' "$version"
    return 0
  done
  return 1
}

driver_in_proc() { # "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Wed …": prints 580.95.05
  sed -n 's/^NVRM version:.* \([0-9][0-9]*\.[0-9][0-9.]*\) .*/\1/p'
}

glibc_version() { # prints "2.35"; fails without glibc
  local version
  version=$(getconf GNU_LIBC_VERSION 2>/dev/null) || return 1
  printf '%s\n' "${version##* }"
}

at_least() { # at_least VERSION FLOOR, compared by their first two numbers
  awk -v have="$1" -v want="$2" 'BEGIN {
    split(have, h, "."); split(want, w, ".")
    exit !(h[1] + 0 > w[1] + 0 || (h[1] + 0 == w[1] + 0 && h[2] + 0 >= w[2] + 0))
  }'
}

# ------------------------------------------------------------------------------------------------- which Python

describe_python() { # prints "3.12 /path/to/python problem", problem being "ok" or a word below
  "$1" -I -c '
import importlib.util, struct, sys, sysconfig
problem = "ok"
if sys.implementation.name != "cpython" or struct.calcsize("P") != 8 or sysconfig.get_config_var("Py_GIL_DISABLED"):
    problem = "build"
elif not importlib.util.find_spec("venv") or not importlib.util.find_spec("ensurepip"):
    problem = "venv"
print("%d.%d" % sys.version_info[:2], problem, sys.executable)' 2>/dev/null
}

choose_python() { # sets PYTHON to the full path of one that fits
  local candidates=(python3 python3.12 python3.11 python3.13 python3.10 python3.14 python)
  local candidate described version problem seen='' wanted no_venv=''
  wanted=$(python_versions)
  [ -z "$PYTHON" ] || candidates=("$PYTHON")
  for candidate in "${candidates[@]}"; do
    described=$(describe_python "$candidate") || continue
    read -r version problem described <<<"$described"
    case " $wanted $problem" in
      *" $version "*ok)
        PYTHON=$described
        return
        ;;
      *" $version "*venv) no_venv=${no_venv:-$version $described} ;;
      *build) version="$version (not a standard 64-bit CPython)" ;;
    esac
    seen="$seen, $candidate is $version"
  done
  python_problem "$wanted" "${seen#, }" "$no_venv"
}

python_versions() { # the Python versions that every lock file in use is made for
  local version
  for version in $(header "$STACK" python); do
    if [ "$COMMAND" = test ]; then
      case " $(header dev python) " in *" $version "*) ;; *) continue ;; esac
    fi
    printf '%s ' "$version"
  done
}

python_problem() { # python_problem WANTED SEEN NO_VENV: dies, saying which of the three it is
  local wanted="${1% }" alternative=''
  if [ -n "$3" ]; then
    die "${3#* } has no venv module. Debian and Ubuntu: sudo apt install python${3%% *}-venv; then run this again."
  fi
  if [ -n "$PYTHON" ] && [ -z "$2" ]; then
    die "--python $PYTHON does not start. Name a Python of version ${wanted// /, }."
  fi
  [ "$STACK" = doctor ] || alternative=" Or, without training: --doctor-only (Python $(header doctor python))."
  die "the $STACK stack needs Python ${wanted// /, }; ${2:-there is no python3 on PATH}." \
    "Install one of these (Debian and Ubuntu: python3 and python3-venv) or name it: --python PATH.$alternative"
}

# ---------------------------------------------------------------------------------------------- the environment

# $STATE, the environment's directory .rlcheck, tells whose it is, how far it got and what is in it.

prepare_environment() {
  if must_build; then
    choose_python
    check_disk
    build_environment
  fi
}

must_build() { # fails where the environment can be used as it is; dies where it is not ours to touch
  if [ ! -e "$VENV" ] || { [ -d "$VENV" ] && [ -z "$(ls -A "$VENV" 2>/dev/null)" ]; }; then
    return 0
  fi
  [ -d "$STATE" ] ||
    die "$VENV exists and was not made by this script. Move it away, or put this environment elsewhere: --venv DIR."
  local state='' pid='' host=''
  read -r state pid host 2>/dev/null <"$STATE/state" || true
  if [ "$state" = building ] && [ "$host" = "$(uname -n)" ] && still_runs "$pid"; then
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

still_runs() { # whether process $1 is another run of this script, and not a later user of its number
  [ "$1" != $$ ] && ps -p "$1" -o args= 2>/dev/null | grep -qF install.sh
}

lock_lines() { # the stack's pins, less the engine's where it is not wanted
  if [ "$ENGINE" = none ]; then
    sed -e '/^#: section engine$/,$d' -e '/^#/d' "$STACKS/$1.txt"
  else
    sed -e '/^#/d' "$STACKS/$1.txt"
  fi
}

check_disk() {
  local need free held=0 place=$VENV
  need=$(header "$STACK" needs-mib)
  [ "$COMMAND" = demo ] || need=$((need + $(header dev needs-mib)))
  while [ ! -d "$place" ]; do place=$(dirname "$place"); done
  [ -w "$place" ] || die "no permission to write in $place. Put the environment elsewhere: --venv DIR."
  free=$(df -Pk "$place" 2>/dev/null | awk 'NR == 2 { print int($4 / 1024) }') || free=''
  [ -n "$free" ] || return 0
  [ ! -d "$VENV" ] || held=$(du -sk "$VENV" 2>/dev/null | awk '{ print int($1 / 1024) }') || held=0
  [ $((free + held)) -ge "$need" ] ||
    die "the $STACK stack needs $need MiB free, $place has $free MiB." \
      'Free some space, put the environment on another disk (--venv DIR), or leave PyTorch out (--doctor-only).'
}

build_environment() {
  local log
  mkdir -p "$VENV" 2>/dev/null || die "cannot make $VENV. Put the environment elsewhere: --venv DIR."
  VENV=$(cd "$VENV" && pwd -P) STATE=$VENV/.rlcheck
  [ ! -d "$STATE" ] || mark_building
  find "$VENV" -mindepth 1 -maxdepth 1 ! -name .rlcheck -exec rm -rf {} +
  { rm -rf "$STATE" && mkdir "$STATE"; } || die "cannot write in $VENV. Put the environment elsewhere: --venv DIR."
  mark_building
  say "Making $VENV with $PYTHON"
  log=$STATE/install.log
  "$PYTHON" -I -m venv --prompt rlcheck "$VENV" >"$log" 2>&1 ||
    die "$PYTHON could not make an environment in $VENV: $(tail -n 1 "$log") (all of it: $log)"
  printf '%s\n' "$PYTHON" >"$STATE/python"
}

mark_building() {
  printf 'building %s %s\n' $$ "$(uname -n)" >"$STATE/state"
}

# ----------------------------------------------------------------------------------------------------- packages

install_packages() {
  install_lock "$STACK" base
  [ "$COMMAND" = demo ] || install_lock dev dev
  install_project
  say ready >"$STATE/state"
}

install_lock() { # install_lock STACK RECORD: does nothing where RECORD says that these very pins are installed
  local pins=$STATE/$2.txt
  if [ -f "$pins" ] && lock_lines "$1" | cmp -s - "$pins"; then
    return
  fi
  mark_building
  lock_lines "$1" >"$pins.new"
  say "Installing the $1 stack: $(sed 's/==.*//' "$pins.new" | sort -u | grep -c .) packages," \
    "up to $(header "$1" needs-mib) MiB of disk (pip's log: $STATE/install.log)"
  pip_with_fallback "$1" "$pins.new"
  mv "$pins.new" "$pins"
}

pip_with_fallback() { # the user's own package sources first; a build's own index only after they have failed
  local build index
  read -r build index <<<"$(header "$1" index)"
  if pip_install --only-binary :all: -r "$2"; then
    return
  fi
  if [ -z "$build" ] || [ -n "$OFFLINE" ] ||
    ! grep -qF "No matching distribution found for $build" "$STATE/install.log"; then
    explain_failure
  fi
  say "$build is in none of the configured package sources: trying $index"
  if pip_install --only-binary :all: --extra-index-url "$index" -r "$2"; then
    return
  fi
  grep -qF "No matching distribution found for $build" "$STATE/install.log" || explain_failure
  die "$build is in none of the configured package sources, and $index is out of reach or has none for this Python." \
    'Name a directory that holds its wheel (PIP_FIND_LINKS=DIR), or leave PyTorch out (--doctor-only).' \
    "(pip's log: $STATE/install.log)"
}

pip_install() { # one pip run without dependencies; its words go to the log
  local sources=() status=0
  [ -z "$OFFLINE" ] || sources=(--no-index --find-links "$OFFLINE")
  mkdir -p "$STATE/tmp"
  (
    # Wheels are unpacked beside the environment: /tmp is often small, or memory.
    export TMPDIR=$STATE/tmp PIP_NO_CACHE_DIR=1
    unset PIP_TARGET PIP_PREFIX PIP_USER PIP_REQUIRE_VIRTUALENV
    cd "$STACKS" && exec "$VENV/bin/python" -I -m pip install --no-input --disable-pip-version-check \
      --progress-bar off --retries 3 --no-deps ${sources[@]+"${sources[@]}"} "$@"
  ) >"$STATE/install.log" 2>&1 || status=$?
  rm -rf "$STATE/tmp"
  return "$status"
}

explain_failure() { # dies with what pip's log shows
  local log=$STATE/install.log missing unreachable='' what
  # pip fetches everything before it changes anything: what was complete still is.
  if [ -f "$STATE/base.txt" ] && ! grep -q '^Installing collected packages' "$log"; then say ready >"$STATE/state"; fi
  missing=$(sed -n 's/.*No matching distribution found for \([^ ]*\).*/\1/p' "$log" | tail -n 1)
  grep -qE 'Retrying \(|ConnectionError|ConnectTimeout|ReadTimeout|name resolution' "$log" && unreachable=yes
  if grep -qE 'No space left on device|Disk quota exceeded' "$log"; then
    what="the disk filled up. Free some space, or put the environment on another disk: --venv DIR."
  elif grep -qE 'CERTIFICATE_VERIFY_FAILED|SSLError' "$log"; then
    what="the package registry's TLS certificate is not trusted here. Give pip your network's: PIP_CERT=FILE."
  elif grep -qE 'ProxyError|407 Proxy' "$log"; then
    what="the proxy between here and the package registry refused. Look at HTTPS_PROXY and NO_PROXY."
  elif grep -qE '40[13] Client Error' "$log"; then
    what="the package registry refused access. Look at the credentials in pip's configuration (pip config list)."
  elif [ -n "$missing" ] && [ -n "$OFFLINE" ]; then
    what="$OFFLINE holds no wheel of $missing for this Python. ./install.sh --help says how to fill it."
  elif [ -n "$unreachable" ]; then
    what="a package registry is out of reach${missing:+ ($missing was not found)}. Check the network and HTTPS_PROXY,"
    what="$what name a mirror (pip config set global.index-url URL), or use --offline DIR."
  elif [ -n "$missing" ]; then
    what="no configured package source has $missing for this Python and platform."
    what="$what Add one that has (pip config set global.extra-index-url URL), or use --offline DIR."
  else
    what="pip failed."
  fi
  { grep '^ERROR' "$log" || tail -n 1 "$log"; } | tail -n 3 | cut -c 1-150 | sed 's/^/  pip: /' >&2
  die "$what (pip's log: $log)"
}

install_project() { # a copy for users, the tree itself for its developers
  local print want
  if [ "$COMMAND" = demo ]; then
    print=$(find "$ROOT/rlcheck" "$ROOT/trainer" "$ROOT/playbooks" "$ROOT/pyproject.toml" \
      -type f ! -name '*.pyc' -exec cksum {} + | LC_ALL=C sort | cksum)
    want="copy $ROOT $print"
  else
    want="editable $ROOT $(cksum <"$ROOT/pyproject.toml")"
  fi
  if [ -f "$STATE/project" ] && [ "$(cat "$STATE/project")" = "$want" ]; then
    return
  fi
  rm -f "$STATE/project"
  # Pins of the build back-end; pip before 25.3 reads the first name. Relative, as pip splits the value at blanks.
  export PIP_CONSTRAINT=build.txt PIP_BUILD_CONSTRAINT=build.txt
  if [ "$COMMAND" = demo ]; then
    pip_install --force-reinstall "$ROOT" || explain_failure
  else
    pip_install --force-reinstall --editable "$ROOT" || explain_failure
  fi
  unset PIP_CONSTRAINT PIP_BUILD_CONSTRAINT
  printf '%s\n' "$want" >"$STATE/project"
}

# --------------------------------------------------------------------------------------------------- what to run

run_demo() {
  local healthy=yes
  examine_machine || healthy=''
  say "Installed. Next: source $VENV/bin/activate, then rlcheck --help$(can_train && echo ' and rltrain --help')"
  if ! can_train; then
    return
  elif [ -z "$healthy" ]; then
    say 'The toy run is left out: its preflight would stop at the failed checks above. Mend them and run this again,' \
      'or live with one of them: rltrain run toy-ppo --ignore ID'
    return
  fi
  say "Training a toy: rltrain run toy-ppo (its files: $PWD/runs/rltrain/toy-ppo)"
  # In place of this shell: Ctrl-C, SIGTERM and the exit code are the trainer's own.
  PATH="$VENV/bin:$PATH" exec "$VENV/bin/rltrain" run toy-ppo
}

can_train() { [ "$STACK" != doctor ] && [ "$ENGINE" != none ]; }

examine_machine() { # fails where a check failed
  local status=0
  "$VENV/bin/rlcheck" env || status=$?
  case $status in
    0) ;;
    1)
      say "rlcheck found problems on this machine (above). The installation itself is complete."
      return 1
      ;;
    *) die "rlcheck itself failed (exit code $status)." ;;
  esac
}

run_tests() {
  local failed=''
  cd "$ROOT"
  export PATH="$VENV/bin:$PATH" PYRIGHT_PYTHON_IGNORE_WARNINGS=1 PYRIGHT_PYTHON_CACHE_DIR="$STATE/pyright"
  run_check ruff check . || failed="$failed, ruff check"
  run_check ruff format --check . || failed="$failed, ruff format"
  run_check pyright --pythonpath "$VENV/bin/python" || failed="$failed, pyright"
  run_check lint-imports || failed="$failed, lint-imports"
  [ -z "$failed" ] || say "FAILED before the tests: ${failed#, }"
  # pytest's closing line stays the last one.
  "$VENV/bin/python" -m pytest -m 'not gpu' && [ -z "$failed" ]
}

run_check() { # prints a check's output only where it fails
  local output
  if output=$("$@" 2>&1); then
    say "ok: $*"
  else
    printf '%s\nFAILED: %s\n' "$output" "$*"
    return 1
  fi
}

interrupted() {
  rm -rf "${STATE:?}/tmp"
  printf '\ninstall.sh: interrupted. Run it again: what is half-made is built anew.\n' >&2
  exit 130
}

main() {
  parse_arguments "$@"
  choose_stack
  STATE=$VENV/.rlcheck
  trap interrupted INT TERM
  prepare_environment
  install_packages
  if [ "$COMMAND" = demo ]; then run_demo; else run_tests; fi
}

# Sourced, the functions can be tried one by one.
if [ "${BASH_SOURCE[0]}" = "$0" ]; then main "$@"; fi
