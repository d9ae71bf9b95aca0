"""`read_run`: a config of any framework, from wherever it is given, as `ConfigFacts`."""

from __future__ import annotations

import difflib
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from rlcheck.facts.base import Fact
from rlcheck.facts.config import ConfigFacts, KeyTable, RunSpec
from rlcheck.measure.config import credentials, effects, models, outputs, paths, programs
from rlcheck.measure.config.calls import Calls
from rlcheck.measure.config.compose import VERLS_OWN
from rlcheck.measure.config.config import Config
from rlcheck.measure.config.detect import framework_of, kind_of
from rlcheck.measure.config.document import Document, parse
from rlcheck.measure.config.errors import ReadError
from rlcheck.measure.config.foreign import Given, Read, read_trainer
from rlcheck.measure.config.interpolate import environment
from rlcheck.measure.config.overlaid import inherited
from rlcheck.measure.config.reward_file import reward_names
from rlcheck.measure.config.rltrain import read_rltrain, recipe_file, recipe_names, rltrain_spec
from rlcheck.measure.config.script_places import Script, placed
from rlcheck.measure.config.shell import Launch, grows_segments, launch_in, leaves_words_out
from rlcheck.measure.config.source_text import text_of, text_of_input
from rlcheck.measure.config.spec_file import is_spec, read_spec
from rlcheck.measure.config.trainer import Trainer
from rlcheck.measure.config.trainers import trainer_of, trainers
from rlcheck.measure.config.verl import read_verl
from rlcheck.measure.config.verl_spec import spec_of


def read_run(
    source: str,
    overrides: Sequence[str],
    *,
    framework: str = "auto",
    verl_version: str = "",
    look: bool = True,
    model_shape: Path | str = "",
) -> ConfigFacts:
    """The run that SOURCE with OVERRIDES asks for.

    Args:
        source: path of a YAML; `-` (standard input); a recipe of rltrain; a shell script, or a pasted line, that starts
            verl's `main_ppo`, a recipe over it, `rltrain run` or another trainer; a Python file that calls a trainer's
            config; a name of verl's own configs; a file of `RunSpec`.
        overrides: `key=value`, applied last; `--config-name`, `--config-path` and `--config-dir` of Hydra are read too.
        framework: auto, rltrain, verl (also `verl@0.8.0`), spec, or another trainer (also with `@VERSION`).
        verl_version: whose defaults to take; "": the newest that is known.
        look: whether the disk may be looked at, beyond the config itself.
        model_shape: file with a model's sizes, or `hidden_size=896,…`, for a model whose files are not here.

    Raises:
        ReadError: there is no such file, or it is no config.
    """
    framework, _, asked = framework.partition("@")
    known = ("auto", "rltrain", "verl", "spec", *trainers())
    if framework not in known:
        raise ReadError(
            f"--framework: expected {', '.join(known[1:])}, or one of them with @VERSION, got '{framework}'"
        )
    given = _launch(source, list(overrides))
    document = given.document
    if framework == "auto":
        framework = given.framework or framework_of(document)
    if (trainer := trainer_of(framework)) is not None:
        return _other(trainer, given, asked, list(overrides), look, model_shape)
    environ = environment() if look else None
    if framework == "spec" or (framework == "auto" and document is not None and is_spec(document)):
        return _spec(given, look, model_shape)
    if framework == "rltrain":
        config = read_rltrain(given.name, document or Document(given.name), given.words, environ=environ)
        return _facts(config, rltrain_spec(config), given, look, model_shape)
    config = read_verl(
        given.name,
        document,
        given.words,
        version=verl_version or asked,
        config_name=given.config_name,
        directory=given.directory if look else None,
        environ=environ,
    )
    if given.recipe:
        config.unsure_keys = "; ".join(filter(None, (config.unsure_keys, _extends(given, config.version))))
    return _facts(config, spec_of(config), given, look, model_shape)


def _other(
    trainer: Trainer, given: _Given, version: str, overrides: list[str], look: bool, model_shape: Path | str
) -> ConfigFacts:
    """The config of another trainer.

    Raises:
        ReadError: it is of yet another one, or a file that this trainer does not read.
    """
    twin = trainer_of(given.framework)
    if given.framework not in ("", trainer.name) and (twin is None or twin.command is not trainer.command):
        raise ReadError(f"--framework {trainer.name}: {given.name} is of {given.framework}; leave --framework out")
    if given.document is not None and not trainer.documents:
        raise ReadError(f"{given.name}: {trainer.title} reads no file of keys; give its command line or a script")
    words = given.words[: len(given.words) - len(overrides)] if given.is_command else []
    document = given.document
    named = programs.file_named(trainer, words, given.directory)
    if named is not None:
        document = parse(str(named), text_of(named))
    if trainer.file_sign and words:
        document, words = programs.composed(trainer, words, given.directory)
    if document is not None and trainer.inherits:
        document = inherited(document, trainer.inherits, Path(document.name).parent)
    kind = (
        trainer.turned(given.kind, words)
        if given.kind and twin is not trainer
        else given.kind
        or (kind_of(trainer, document) if document is not None else programs.kind_of(trainer, given.calls))
    )
    what = Given(given.name, kind, words, overrides, given.before, document, given.calls,
                 is_guessed=bool(given.program) or given.is_adopted,
                 environ=environment() if look else None)  # fmt: skip
    if trainer.launcher_options:
        launched = [*given.before, *words]
        what.launch_file, notes = programs.launcher_file(launched, trainer.launcher_options, given.directory)
        given.notes = (*given.notes, *notes)
    found = read_trainer(trainer, what, version=version)
    spec, told = found.spec, None if given.script is None else grows_segments(given.script.text)
    if told is not None:
        spec = msgspec.structs.replace(spec, expandable_segments=told)
    return _facts(found.config, spec, given, look, model_shape, found)


def _extends(given: _Given, version: str) -> str:
    lost = f"; its {given.config_file} is not here, --config-dir gives it" if given.config_file else ""
    return f"{given.recipe} is read as main_ppo of verl {version}, whose config it extends{lost}"


class _Given(msgspec.Struct):
    """A config as it is there."""

    name: str
    words: list[str]
    document: Document | None = None
    framework: str = ""
    config_name: str = ""
    directory: Path | None = None
    recipe: str = ""
    config_file: str = ""
    """Of a recipe: the file that it starts from, where that is not here."""
    notes: tuple[str, ...] = ()
    script: Script | None = None
    kind: str = ""
    before: tuple[str, ...] = ()
    program: str = ""
    calls: Calls | None = None
    is_command: bool = False
    is_adopted: bool = False


def _launch(source: str, words: list[str]) -> _Given:
    """What SOURCE is, with everything that the command in it says."""
    if source == "-":
        return _from_text("<stdin>", text_of_input(), words, Path.cwd())
    recipe = recipe_file(source)
    if recipe is not None:
        given = _from_text(recipe.name, text_of(recipe), words, recipe.parent)
        given.framework = "rltrain"
        return given
    if source.removesuffix(".yaml") in VERLS_OWN and not Path(source).is_file():
        own = Launch.of_words(words).words
        return _Given(source, own, framework="verl", config_name=source.removesuffix(".yaml"))
    if _is_line(source):
        return _from_text("<command>", source, words, Path.cwd())
    path = Path(source).expanduser()
    if os.path.isdir(path):
        raise ReadError(
            f"{path.absolute()} is a directory; give a config file or a recipe: {', '.join(recipe_names())}"
        )
    if not os.path.exists(path):
        names = recipe_names()
        near = difflib.get_close_matches(source, names, n=1)
        meant = f"; did you mean '{near[0]}'?" if near else ""
        raise ReadError(f"no file {path.absolute()} and no recipe '{source}' ({', '.join(names)}){meant}")
    return _from_text(source, text_of(path), words, path.absolute().parent)


def _is_line(source: str) -> bool:
    """Whether SOURCE is a command itself, not a path."""
    return (
        any(sign in source for sign in " \n\t")
        and (
            any(word in source for word in ("main", "rltrain", "sft_trainer", "=", ".py"))
            or any(trainer.is_in(source) for trainer in trainers().values())
        )
        and ("\n" in source or not os.path.exists(source))
    )


def _from_text(name: str, text: str, words: list[str], directory: Path) -> _Given:
    if not text.strip():
        raise ReadError(f"{name} is empty; give a config file, a script or a recipe")
    if name.endswith(".py"):
        return _from_python(name, text, directory)
    launch = launch_in(name, text, lambda path: programs.settings_in(path, directory),
                       lambda path: programs.sourced(path, directory))  # fmt: skip
    if launch is None:
        if text.startswith("#!") or name.endswith((".sh", ".bash", ".slurm", ".sbatch")):
            raise ReadError(
                f"{name}: no command in it starts verl.trainer.main_ppo, `rltrain run` or a trainer that is known: "
                f"{', '.join(trainers())}; give one that does"
            )
        flags = Launch.of_words(words)
        if flags.config_name or flags.config_path:
            raise ReadError(f"{name} is a config itself; leave --config-name, --config-path and --config-dir out")
        return _Given(name, flags.words, parse(name, text), directory=directory)
    given = _started(name, launch, words, directory)
    if name != "<command>":
        given.script = Script(name=name, text=text, words=tuple(launch.words))
    return given


def _from_python(name: str, text: str, directory: Path) -> _Given:
    trainer, calls = programs.calls_of(name, text)
    return _Given(name, [], framework=trainer.name, kind=programs.kind_of(trainer, calls), calls=calls,
                  directory=directory, notes=programs.notes_of(calls))  # fmt: skip


def _started(name: str, launch: Launch, words: list[str], directory: Path) -> _Given:
    """A command found in a script: what it starts from, and its overrides before those of the command line."""
    flags = Launch.of_words(words)
    given = _Given(name, [*launch.words, *flags.words], framework=launch.framework, notes=launch.notes)
    given.recipe = launch.recipe
    if trainer_of(launch.framework) is not None:
        given.kind, given.before, given.directory, given.is_command = launch.kind, launch.before, directory, True
        given.program, given.is_adopted = launch.program, launch.is_adopted
        if launch.program:
            file = programs.found(launch.program, directory)
            assert file is not None
            given.calls = programs.calls_of(str(file), text_of(file))[1]
        return given
    config_name = (flags.config_name or launch.config_name).removesuffix(".yaml")
    folder = flags.config_path or launch.config_path
    if launch.framework == "rltrain":
        inner = _launch(launch.config_name, given.words) if launch.config_name else given
        inner.framework, inner.notes = "rltrain", (*given.notes, *inner.notes)
        return inner
    given.config_name = config_name
    if not config_name or config_name in VERLS_OWN:
        return given
    path = _beside(config_name, folder, directory)
    if path is None and launch.recipe and not flags.config_path:
        given.config_file = f"{config_name}.yaml"
        given.config_name = "ppo_megatron_trainer" if "megatron" in config_name else "ppo_trainer"
        return given
    if path is None:
        where = f" in {folder}" if folder else ""
        raise ReadError(
            f"{name}: --config-name={config_name}: no {config_name}.yaml{where}; give its directory by --config-dir"
        )
    given.document, given.directory = parse(str(path), text_of(path)), path.parent
    return given


def _beside(config_name: str, folder: str, directory: Path) -> Path | None:
    """The file of a config's name: in its folder as given, from the working directory or above the script."""
    bases = [Path.cwd(), directory, *list(directory.parents)[:4]]
    found = (base / folder / f"{config_name}.yaml" for base in bases)
    return next((path for path in found if path.is_file()), None)


def _spec(given: _Given, look: bool, model_shape: Path | str) -> ConfigFacts:
    if given.document is None:
        raise ReadError(f"{given.name}: a command is no file of RunSpec fields; leave --framework out")
    config, spec = read_spec(given.name, given.document, given.words)
    return _facts(config, spec, given, look, model_shape)


def _is_open(given: _Given) -> bool:
    """Whether there are keys that nothing is known of: a program's own, or what only the shell knows."""
    is_spread = given.calls is not None and given.calls.is_spread
    return bool(given.program) or given.is_adopted or is_spread or leaves_words_out(given.notes)


def _facts(
    config: Config, spec: RunSpec, given: _Given, look: bool, model_shape: Path | str, read: Read | None = None
) -> ConfigFacts:
    found = models.models_of(config, spec, look=look, shape=str(model_shape))
    spec = models.with_lengths(config, spec, found)
    names, error = reward_names(spec.reward.function_path) if look else (Fact[tuple[str, ...]](), "")
    if not _is_open(given):
        effects.note(config, is_program=given.calls is not None)
    facts = ConfigFacts(
        framework=config.framework,
        version=config.version,
        unsure_keys=config.unsure_keys,
        source=config.source,
        spec=spec,
        values=config.values,
        given=config.given,
        problems=tuple(config.problems),
        notes=(*given.notes, *config.notes),
        models=found,
        paths=(*paths.paths_of(config, spec, look=look), *outputs.outputs_of(config, spec, look=look)),
        credentials=credentials.lacking(config, spec) if look else {},
        fallbacks=tuple(config.fallbacks),
        reward_names=names,
        reward_error=error,
        without={} if read is None else read.without,
        table=KeyTable() if read is None else read.table,
    )
    return facts if given.script is None else placed(facts, given.script)
