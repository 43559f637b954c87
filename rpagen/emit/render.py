"""From variants to text: every module of the emitted package, before formatting.

Jinja chooses which statements exist; every value that a template prints is computed here.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Iterator, Mapping, Sequence

import jinja2
import jinja2.ext

from rpagen.emit import resources, stages, wording
from rpagen.spec import axes, budget
from rpagen.spec.model import Catalogue, Variant

PACKAGE = "rpa_kernels"


@dataclasses.dataclass(frozen=True)
class Module:
    """One Python file of the emitted package.

    path: below `generated/`.
    origin: the place in a spec (file:line) that asks for it, or its template.
    """

    path: str
    origin: str
    variant: Variant | None = None


_OVERTAKEN = {1: "the item before it", 2: "the second item before it"}
"""By attention depth, the work item whose step 2 waits for a step 1."""

REGISTRY = f"{PACKAGE}/registry.py"
SHARED_MODULES = {
    f"{PACKAGE}/__init__.py": "init.py.j2",
    REGISTRY: "registry.py.j2",
    f"{PACKAGE}/support.py": "support.py.j2",
}


def modules(catalogue: Catalogue) -> tuple[Module, ...]:
    """Every Python file of the package, in the order of their paths."""
    shared = [Module(path, f"templates/{name}") for path, name in SHARED_MODULES.items()]
    kernels = [
        Module(f"{PACKAGE}/{variant.name}.py", f"{variant.mark.file}:{variant.mark.line}", variant)
        for variant in catalogue.variants
    ]
    return tuple(sorted([*shared, *kernels], key=lambda module: module.path))


def inputs(module: Module, catalogue: Catalogue) -> str:
    """Canonical text of everything from the specs that the module's body depends on."""
    if module.variant is not None:
        return wording.record(module.variant)
    if module.path == REGISTRY:
        return repr((list(_records(catalogue).values()), _exclusions(catalogue)))
    return ""


class Unfinished(Exception):
    """A template failed, which is its cause; `text` is what the module had by then."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


def render(
    module: Module, catalogue: Catalogue, environment: jinja2.Environment | None = None
) -> str:
    """The body of a module: no header, not formatted.

    environment: of the templates, when not the usual one.

    Raises:
        Unfinished: a template is wrong.
    """
    written: list[str] = []
    pieces = _pieces(module, catalogue, environment or usual_environment(), written)
    return _finished(pieces, written)


def render_file(template: str, context: Mapping[str, object]) -> str:
    """What a template makes that has nothing to do with variants.

    Raises:
        Unfinished: the template is wrong.
    """

    def pieces() -> Iterator[str]:
        yield from usual_environment().get_template(template).generate(context)

    return _finished(pieces(), [])


def _finished(pieces: Iterator[str], written: list[str]) -> str:
    """All pieces in one; those that are there are in `written`."""
    try:
        for piece in pieces:
            written.append(piece)
    except Exception as error:
        raise Unfinished("".join(written)) from error
    return "".join(written)


@functools.cache
def usual_environment() -> jinja2.Environment:
    """The environment of all templates."""
    return make_environment()


def make_environment(
    extensions: Sequence[type[jinja2.ext.Extension]] = (),
    instead: Mapping[str, str] | None = None,
) -> jinja2.Environment:
    """An environment of the templates: what is not defined is an error.

    instead: the text of templates, by their names, in place of what is in their files.
    """
    files = jinja2.FileSystemLoader(resources.templates_dir())
    return jinja2.Environment(
        loader=jinja2.ChoiceLoader([jinja2.DictLoader(instead or {}), files]),
        extensions=extensions,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )


def _pieces(
    module: Module, catalogue: Catalogue, environment: jinja2.Environment, written: list[str]
) -> Iterator[str]:
    """The body of a module as it comes; where a stage fails, what it had is left in `written`."""
    if module.variant is None:
        template = environment.get_template(SHARED_MODULES[module.path])
        yield from template.generate(_shared_context(catalogue))
    else:
        context = _context(module.variant)
        stages_in_turn = _stages(module.variant, context, environment, written)
        template = environment.get_template("module.py.j2")
        yield from template.generate(context, stages=stages_in_turn)


def _stages(
    variant: Variant,
    context: Mapping[str, object],
    environment: jinja2.Environment,
    written: list[str],
) -> Iterator[str]:
    """The text of every stage of a variant, rendered when it is asked for."""
    for use in stages.uses(variant):
        done = len(written)
        template = environment.get_template(use.template)
        for piece in template.generate(context, **_context_of_use(variant, use)):
            written.append(piece)
        text = "".join(written[done:])
        del written[done:]  # the module's template writes it, as a whole
        yield text.strip()


def _context_of_use(variant: Variant, use: stages.Use) -> dict[str, object]:
    """What a stage prints besides, where launches differ."""
    waits_on_pages = variant.layout == "head_major" and use.pipelining.dma_wait == "aggregate"
    return {
        "name": "_and_".join(use.launches),
        "of": use.suffixes,
        "pipelining": use.pipelining,
        "wait_source": "operands, " if waits_on_pages else "",
        "depth": use.pipelining.attention_depth,
        "overtaken": _OVERTAKEN.get(use.pipelining.attention_depth),
    }


def _shared_context(catalogue: Catalogue) -> dict[str, object]:
    """What the modules print that all variants share."""
    return {
        "budget": _budget_source(),
        "variants": catalogue.variants,
        "records": _records(catalogue),
        "exclusions": _exclusions(catalogue),
        "features": axes.BY_PATH["features"].values,
    }


def _context(variant: Variant) -> dict[str, object]:
    """What the templates of a variant print."""
    updates_cache = stages.updates_cache(variant)
    is_quantized = stages.is_quantized(variant)
    quantizes_queries = stages.quantizes_queries(variant)
    is_float32 = variant.query_dtype == "float32"
    arguments = _arguments(variant)
    static = {name: each for name, each in arguments.items() if each.is_static}
    makes = ", ".join(f"{name}={name}" for name in static)
    shapes = wording.shapes(variant)
    scales = _scales(variant)
    return {
        "variant": variant,
        "updates_cache": updates_cache,
        "quantized": is_quantized,
        "widens_codes": stages.widens_codes(variant),
        "takes_wider_keys": variant.kv_dtype != "float32",
        "quantized_queries": quantizes_queries,
        "scale_arguments": [
            *(["q_scale"] if quantizes_queries else []),
            *(["k_scale", "v_scale"] if is_quantized else []),
        ],
        "arguments": arguments,
        "launch_fields": static,
        "make_launch": f"functools.partial(Launch, {makes})" if static else "support.Launch",
        "kv_slots": {name: plan.kv_slots for name, plan in variant.launches.items()},
        "kernels": {
            launch: f"{'_and_'.join(use.launches)}_kernel"
            for use in stages.uses(variant)
            if use.template.startswith("stages/kernel/")
            for launch in use.launches
        },
        # Arguments that only some variants pass along.
        "new_kv_argument": "new_kv, " if updates_cache else "",
        "span_where_windowed": "span, " if variant.has("sliding_window") else "",
        "masked_tile": "tile" if stages.masks_by_position(variant) else "_tile",
        "visible_to": "span, tile, " if stages.masks_by_position(variant) else "",
        "launch_where_windowed": ", launch" if variant.has("sliding_window") else "",
        "whole": "first, past" if variant.has("sliding_window") else "past",
        "whole_start": "first" if variant.has("sliding_window") else "0",
        "scales": "scales_ref, " if is_quantized else "",
        "scales_last": ", scales_ref" if is_quantized else "",
        "query_scale": "scales_ref, " if quantizes_queries else "",
        "value_scale": "scales_ref[VALUE_SCALE]" if is_quantized else "1.0",
        "scale_names": list(scales),
        "scales_vector": ", ".join(scales.values()),
        # Expressions that dtypes decide.
        "precision": "precision=lax.Precision.HIGHEST,\n" if is_float32 else "",
        "weights": "weights" if is_float32 else "weights.astype(QUERY_DTYPE)",
        "ordered_queries": (
            "quantize_queries(pltpu.bitcast(rows, QUERY_DTYPE), scales_ref[QUERY_SCALE])"
            if quantizes_queries
            else "pltpu.bitcast(rows, QUERY_DTYPE)"
        ),
        "ordered_dtype": "KV_DTYPE" if quantizes_queries else "QUERY_DTYPE",
        # Shapes of what a kernel sees.
        "shapes": shapes,
        "kv_scratch_shape": (
            "(launch.kv_slots, kv_cache.shape[1], launch.kv_rows, launch.head_dim)"
            if variant.layout == "head_major"
            else "(launch.kv_slots, launch.kv_rows, kv_words, *kv_cache.shape[3:])"
        ),
        "kernel_parameters": _kernel_parameters(variant, shapes),
        "operands": _operands(variant),
        "key_dtypes": wording.key_dtypes(variant),
        "entry_summary": wording.summary(variant),
        "docstring": wording.docstring(variant),
        "variant_record": f"VARIANT = {wording.record(variant, 'support.')}",
    }


def _arguments(variant: Variant) -> dict[str, axes.Argument]:
    """The arguments that a variant's features add to its entry point, by their names."""
    values = axes.BY_PATH["features"].values
    return {
        str(value.name): value.argument
        for value in values
        if value.name in variant.features and value.argument is not None
    }


def _scales(variant: Variant) -> dict[str, str]:
    """What kernels multiply with: names and expressions, in the order of scales_ref."""
    arguments = _arguments(variant)
    units = [each.score_unit for each in arguments.values() if each.score_unit]
    score_scale = ["sm_scale"]
    scales = {}
    if stages.is_quantized(variant):
        score_scale.append("* k_scale")
        scales["VALUE_SCALE"] = "v_scale"
    if stages.quantizes_queries(variant):
        score_scale.append("* q_scale")
        scales["QUERY_SCALE"] = "q_scale"
    factors = {name.upper(): each.factor for name, each in arguments.items() if each.factor}
    score_scale += units or ["* support.LOG2_E"]
    return {"SCORE_SCALE": " ".join(score_scale), **scales, **factors}


def _kernel_parameters(variant: Variant, shapes: dict[str, str]) -> list[tuple[str, str]]:
    """The operands of a kernel and their shapes, in the order pallas_call passes them."""
    cache, out = shapes["cache"], shapes["queries"]
    updates_cache = stages.updates_cache(variant)
    new_kv = [("new_kv_ref", f"{shapes['new_kv_words']}; HBM")]
    cache_operand = [("_cache_operand_ref", f"{cache}; aliases cache_ref")]
    cache_ref = ("cache_ref", f"{cache}; HBM")
    out_ref = ("out_ref", f"{out}; HBM")
    return [
        ("kv_lens_ref", "i32[sequences]; SMEM"),
        ("page_indices_ref", "i32[sequences * pages per sequence]; SMEM"),
        ("cu_q_lens_ref", "i32[sequences + 1]; SMEM"),
        ("bounds_ref", "i32[4]: 0, and the ends of decode, prefill and mixed; SMEM"),
        ("scales_ref", "f32[scales]; SMEM"),
        ("queries_ref", f"{out}; HBM"),
        *(new_kv if updates_cache else []),
        ("_out_operand_ref", f"{out}; aliases out_ref"),
        *([*cache_operand, out_ref, cache_ref] if updates_cache else [cache_ref, out_ref]),
    ]


def _operands(variant: Variant) -> str:
    """The fields of a kernel's `Operands`, in order."""
    new_kv = "new_kv, " if stages.updates_cache(variant) else ""
    return f"kv_lens_ref, page_indices_ref, cu_q_lens_ref, queries_ref, {new_kv}out_ref, cache_ref"


def _budget_source() -> str:
    """The budget functions, as they stand in `rpagen.spec.budget`."""
    source = inspect.getsource(budget)
    return source[source.index("LANES =") :].rstrip()


def _records(catalogue: Catalogue) -> dict[str, str]:
    """The record of every variant, by its name."""
    return {variant.name: wording.record(variant) for variant in catalogue.variants}


def _exclusions(catalogue: Catalogue) -> list[tuple[str, str]]:
    """What is excluded, and why, as expressions."""
    return [(repr(dict(each.when)), repr(each.reason)) for each in catalogue.exclusions]
