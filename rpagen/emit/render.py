"""From variants to text: every module of the emitted package, before formatting.

Jinja chooses which statements exist; every value that a template prints is computed here.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import pprint

import jinja2

from rpagen.emit import resources, stages
from rpagen.spec import axes, budget, rules
from rpagen.spec.model import FEATURES, Variant

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


@dataclasses.dataclass(frozen=True)
class Parameter:
    """An argument that a feature adds to a call, known when the call is traced."""

    name: str
    type: str
    doc: str


FEATURE_PARAMETERS = {
    "sliding_window": Parameter(
        "sliding_window", "int", "a query at position q sees keys after q - sliding_window"
    ),
    "soft_cap": Parameter("soft_cap", "float", "bound of the scores"),
}

RECORD_FIELDS = (
    "name",
    "family",
    "layout",
    "query_dtype",
    "kv_dtype",
    "quantization",
    "features",
    "numerics",
    "generations",
    "is_default",
)
"""The fields of a variant that its record in the emitted package has, besides its launches."""

_FEATURE_WORDS = {
    "sliding_window": "a sliding window",
    "soft_cap": "a soft cap",
    "bidirectional": "no causal mask",
    "kv_share": "a cache that another layer fills",
}

SHARED_MODULES = {
    f"{PACKAGE}/__init__.py": "init.py.j2",
    f"{PACKAGE}/registry.py": "registry.py.j2",
    f"{PACKAGE}/support.py": "support.py.j2",
}


def modules(variants: tuple[Variant, ...]) -> tuple[Module, ...]:
    """Every Python file of the package, in the order of their paths."""
    shared = [Module(path, f"templates/{name}") for path, name in SHARED_MODULES.items()]
    kernels = [
        Module(f"{PACKAGE}/{variant.name}.py", f"{variant.mark.file}:{variant.mark.line}", variant)
        for variant in variants
    ]
    return tuple(sorted([*shared, *kernels], key=lambda module: module.path))


def inputs(module: Module, variants: tuple[Variant, ...]) -> str:
    """Canonical text of everything from the specs that the module's body depends on."""
    if module.variant is not None:
        return _canonical(module.variant)
    return "\n".join(_canonical(variant) for variant in variants)


def render(module: Module, variants: tuple[Variant, ...]) -> str:
    """The body of a module: no header, not formatted.

    Raises:
        jinja2.TemplateError: if a template is wrong.
    """
    if module.variant is not None:
        return _render_kernels(module.variant)
    template = environment().get_template(SHARED_MODULES[module.path])
    return template.render(
        budget=_budget_source(),
        variants=variants,
        records={variant.name: _record(variant) for variant in variants},
        exclusions=[(repr(dict(rule.when)), repr(rule.reason)) for rule in rules.RULES],
        known_features=repr(FEATURES),
    )


@functools.cache
def environment() -> jinja2.Environment:
    """The environment of all templates: what is not defined is an error."""
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(resources.templates_dir()),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )


def _render_kernels(variant: Variant) -> str:
    context = _context(variant)
    rendered = []
    for use in stages.uses(variant):
        template = environment().get_template(use.template)
        name = "_and_".join(use.launches)
        waits_on_pages = variant.layout == "head_major" and use.pipelining.dma_wait == "aggregate"
        rendered.append(
            template.render(
                context,
                name=name,
                of=use.suffixes,
                pipelining=use.pipelining,
                wait_update_arguments=(
                    "kv, slot, launch" if use.pipelining.dma_wait == "per_page" else "kv, slot"
                ),
                wait_source="cache_ref, " if waits_on_pages else "",
                depth=use.pipelining.attention_depth,
            ).strip()
        )
    return environment().get_template("module.py.j2").render(context, stages=rendered)


def _context(variant: Variant) -> dict[str, object]:
    """What the templates of a variant print."""
    updates_cache = stages.updates_cache(variant)
    is_quantized = stages.is_quantized(variant)
    quantizes_queries = stages.quantizes_queries(variant)
    is_float32 = variant.query_dtype == "float32"
    parameters = [
        FEATURE_PARAMETERS[name] for name in variant.features if name in FEATURE_PARAMETERS
    ]
    makes = ", ".join(f"{parameter.name}={parameter.name}" for parameter in parameters)
    shapes = _shapes(variant)
    return {
        "variant": variant,
        "updates_cache": updates_cache,
        "quantized": is_quantized,
        "quantized_queries": quantizes_queries,
        "launch_fields": parameters,
        "make_launch": f"functools.partial(Launch, {makes})" if parameters else "support.Launch",
        "waits_per_page": any(p.dma_wait == "per_page" for p in variant.launches.values()),
        "kv_slots": {name: plan.kv_slots for name, plan in variant.launches.items()},
        "kernels": {
            launch: f"{'_and_'.join(use.launches)}_kernel"
            for use in stages.uses(variant)
            if use.template.startswith("stages/kernel/")
            for launch in use.launches
        },
        # Arguments that only some variants pass along.
        "kv_source": "tables, new_kv_ref, cache_ref" if updates_cache else "tables, cache_ref",
        "new_kv_argument": "new_kv, " if updates_cache else "",
        "value_scale": "value_scale, " if is_quantized else "",
        "value_scale_numerator": "value_scale" if is_quantized else "1.0",
        "scales": "score_scale, query_scale" if quantizes_queries else "score_scale",
        "scales_vector": _scales_vector(variant),
        # Expressions that dtypes decide.
        "precision": "precision=lax.Precision.HIGHEST,\n" if is_float32 else "",
        "weights": "weights" if is_float32 else "weights.astype(QUERY_DTYPE)",
        "queries": (
            "quantize_queries(load_queries(head, tile), query_scale)"
            if quantizes_queries
            else "load_queries(head, tile)"
        ),
        "keys": "dequantize(keys)" if is_quantized and not quantizes_queries else "keys",
        "values": "dequantize(values)" if is_quantized else "values",
        # Shapes of what a kernel sees.
        "shapes": shapes,
        "kv_scratch_shape": (
            "(launch.kv_slots, kv_cache.shape[1], launch.kv_rows, launch.head_dim)"
            if variant.layout == "head_major"
            else "(launch.kv_slots, launch.kv_rows, *kv_cache.shape[2:])"
        ),
        "scalar_parameters": [("scales_ref", shapes["scales"])],
        "hbm_parameters": _hbm_parameters(variant, shapes),
        "key_dtypes": variant.kv_dtype + (f" or wider, to be quantized" if is_quantized else ""),
        "entry_summary": _summary(variant),
        "docstring": _docstring(variant),
        "variant_record": f"VARIANT = {_record(variant, 'support.')}",
    }


def _scales_vector(variant: Variant) -> str:
    """What a kernel multiplies with: the score scale, and those of values and queries."""
    scale = "sm_scale"
    if stages.is_quantized(variant):
        scale += " * k_scale"
    if stages.quantizes_queries(variant):
        scale += " * q_scale"
    scale += " / soft_cap" if variant.has("soft_cap") else " * support.LOG2_E"
    scales = [scale]
    if stages.is_quantized(variant):
        scales.append("v_scale")
    if stages.quantizes_queries(variant):
        scales.append("q_scale")
    return ", ".join(scales)


def _shapes(variant: Variant) -> dict[str, str]:
    """The shapes that comments in a variant say."""
    kv_row = {
        1: "2 * kv heads, 1, head dim",
        2: "kv heads, 2, head dim",
        4: "align(2 * kv heads, 4) / 4, 4, head dim",
    }[variant.kv_packing]
    query_row = f"kv heads * group / {variant.query_packing}, {variant.query_packing}, head dim"
    scales = ["score scale"]
    if stages.is_quantized(variant):
        scales.append("value scale")
    if stages.quantizes_queries(variant):
        scales.append("query scale")
    if variant.layout == "head_major":
        cache = "[pages, 2 * kv heads, page size, head dim]"
        slots = "[kv slots, 2 * kv heads, kv rows, head dim]"
    else:
        cache = f"[pages, page size, {kv_row}]"
        slots = f"[kv slots, kv rows, {kv_row}]"
    return {
        "cache": cache,
        "kv_slots": slots,
        "new_kv": f"[tokens, {kv_row}]",
        "queries": f"[tokens, {query_row}]",
        "query_slots": f"[2, query block, {query_row}]",
        "scales": f"f32[{len(scales)}]: {', '.join(scales)}; SMEM",
    }


def _hbm_parameters(variant: Variant, shapes: dict[str, str]) -> list[tuple[str, str]]:
    """The arguments of a kernel that lie in HBM, in the order pallas_call passes them."""
    cache, out = shapes["cache"], shapes["queries"]
    if not stages.updates_cache(variant):
        return [
            ("queries_ref", out),
            ("_out_operand_ref", f"{out}, the same as out_ref"),
            ("cache_ref", cache),
            ("out_ref", out),
        ]
    return [
        ("queries_ref", out),
        ("new_kv_ref", shapes["new_kv"]),
        ("_out_operand_ref", f"{out}, the same as out_ref"),
        ("_cache_operand_ref", f"{cache}, the same as cache_ref"),
        ("out_ref", out),
        ("cache_ref", cache),
    ]


def _summary(variant: Variant) -> str:
    """What a variant computes, in one line."""
    words = "Ragged paged attention"
    if variant.features:
        words += " with " + " and ".join(_FEATURE_WORDS[name] for name in variant.features)
    return f"{words}, over a {variant.kv_dtype} cache."


def _docstring(variant: Variant) -> str:
    """The docstring of a kernel module: what it computes and how, axis by axis."""
    rows = [(path, _said(value)) for path, value in _axes_in_short(variant).items()]
    width = max(len(path) for path, _ in rows)
    table = "\n".join(f"    {path:{width}}  {value}" for path, value in rows)
    return f"{_summary(variant)}\n\n{table}\n"


def _axes_in_short(variant: Variant) -> dict[str, axes.AxisValue]:
    """The value of every axis; one that all launches agree on is said once."""
    facts = variant.facts
    short = {path: value for path, value in facts.items() if not path.startswith("launches.")}
    for axis in axes.PIPELINING_AXES:
        by_launch = {
            path: facts[path]
            for path in (axes.launch_path(launch, axis.path) for launch in variant.launches)
        }
        agreed = len(set(by_launch.values())) == 1
        short |= {axis.path: next(iter(by_launch.values()))} if agreed else by_launch
    return short


def _said(value: axes.AxisValue) -> str:
    if isinstance(value, tuple):
        return ", ".join(value) or "none"
    return str(value)


def _record(variant: Variant, module: str = "") -> str:
    """The record of a variant in the emitted package, as an expression.

    `module` goes before the names of the record's classes.
    """
    launches = ", ".join(f"({name!r}, {module}{plan!r})" for name, plan in variant.launches.items())
    own = ", ".join(f"{field}={getattr(variant, field)!r}" for field in RECORD_FIELDS)
    return f"{module}Variant({own}, launches=({launches},))"


def _budget_source() -> str:
    """The budget functions, as they stand in `rpagen.spec.budget`."""
    source = inspect.getsource(budget)
    return source[source.index("LANES =") :].rstrip()


def _canonical(variant: Variant) -> str:
    return pprint.pformat(dataclasses.asdict(variant), width=100)
