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
    """An argument that a feature adds to a call.

    is_static: whether it is known when the call is traced, and a field of the launch.
    """

    name: str
    type: str
    doc: str
    is_static: bool


FEATURE_PARAMETERS = {
    "sliding_window": Parameter(
        "sliding_window", "int", "a query at position q sees keys after q - sliding_window", True
    ),
    "soft_cap": Parameter("soft_cap", "float", "bound of the scores", False),
}

_OVERTAKEN = {1: "the item before it", 2: "the second item before it"}
"""By attention depth, the work item whose step 2 waits for a step 1."""

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
                wait_source="operands, " if waits_on_pages else "",
                depth=use.pipelining.attention_depth,
                overtaken=_OVERTAKEN.get(use.pipelining.attention_depth),
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
    fields = [parameter for parameter in parameters if parameter.is_static]
    makes = ", ".join(f"{parameter.name}={parameter.name}" for parameter in fields)
    shapes = _shapes(variant)
    scales = _scales(variant)
    return {
        "variant": variant,
        "updates_cache": updates_cache,
        "quantized": is_quantized,
        "quantized_queries": quantizes_queries,
        "feature_parameters": parameters,
        "launch_fields": fields,
        "make_launch": f"functools.partial(Launch, {makes})" if fields else "support.Launch",
        "waits_per_page": any(p.dma_wait == "per_page" for p in variant.launches.values()),
        "kv_slots": {name: plan.kv_slots for name, plan in variant.launches.items()},
        "kernels": {
            launch: f"{'_and_'.join(use.launches)}_kernel"
            for use in stages.uses(variant)
            if use.template.startswith("stages/kernel/")
            for launch in use.launches
        },
        # Arguments that only some variants pass along.
        "new_kv_argument": "new_kv, " if updates_cache else "",
        "launch_where_updated": ", launch" if updates_cache else "",
        "launch_where_windowed": ", launch" if variant.has("sliding_window") else "",
        "scales": "scales_ref, " if is_quantized else "",
        "value_scale": "scales_ref[VALUE_SCALE]" if is_quantized else "1.0",
        "scale_names": list(scales),
        "scales_vector": ", ".join(scales.values()),
        # Expressions that dtypes decide.
        "precision": "precision=lax.Precision.HIGHEST,\n" if is_float32 else "",
        "weights": "weights" if is_float32 else "weights.astype(QUERY_DTYPE)",
        "queries": (
            "quantize_queries(load_queries(head, tile), scales_ref[QUERY_SCALE])"
            if quantizes_queries
            else "load_queries(head, tile)"
        ),
        # Shapes of what a kernel sees.
        "shapes": shapes,
        "kv_scratch_shape": (
            "(launch.kv_slots, kv_cache.shape[1], launch.kv_rows, launch.head_dim)"
            if variant.layout == "head_major"
            else "(launch.kv_slots, launch.kv_rows, *kv_cache.shape[2:])"
        ),
        "kernel_parameters": _kernel_parameters(variant, shapes),
        "operands": _operands(variant),
        "key_dtypes": variant.kv_dtype + (f" or wider, to be quantized" if is_quantized else ""),
        "entry_summary": _summary(variant),
        "docstring": _docstring(variant),
        "variant_record": f"VARIANT = {_record(variant, 'support.')}",
    }


def _scales(variant: Variant) -> dict[str, str]:
    """What a kernel multiplies with, and how the wrapper computes it, in the order of scales_ref."""
    score_scale = "sm_scale"
    if stages.is_quantized(variant):
        score_scale += " * k_scale"
    if stages.quantizes_queries(variant):
        score_scale += " * q_scale"
    if variant.has("soft_cap"):
        scales = {"SCORE_SCALE": f"{score_scale} / soft_cap", "SOFT_CAP": "soft_cap * support.LOG2_E"}
    else:
        scales = {"SCORE_SCALE": f"{score_scale} * support.LOG2_E"}
    if stages.is_quantized(variant):
        scales["VALUE_SCALE"] = "v_scale"
    if stages.quantizes_queries(variant):
        scales["QUERY_SCALE"] = "q_scale"
    return scales


def _shapes(variant: Variant) -> dict[str, str]:
    """The shapes that comments in a variant say."""
    kv_row = {
        1: "2 * kv heads, 1, head dim",
        2: "kv heads, 2, head dim",
        4: "ceil(kv heads / 2), 4, head dim",
    }[variant.kv_packing]
    query_row = f"kv heads * group / {variant.query_packing}, {variant.query_packing}, head dim"
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
        "scales": "f32[scales]; SMEM",
    }


def _kernel_parameters(variant: Variant, shapes: dict[str, str]) -> list[tuple[str, str]]:
    """The operands of a kernel and their shapes, in the order pallas_call passes them."""
    cache, out = shapes["cache"], shapes["queries"]
    parameters = [
        ("kv_lens_ref", "i32[sequences]; SMEM"),
        ("page_indices_ref", "i32[sequences * pages per sequence]; SMEM"),
        ("cu_q_lens_ref", "i32[sequences + 1]; SMEM"),
        ("bounds_ref", "i32[4]: 0, and the ends of decode, prefill and mixed; SMEM"),
        ("scales_ref", shapes["scales"]),
        ("queries_ref", f"{out}; HBM"),
    ]
    if stages.updates_cache(variant):
        return [
            *parameters,
            ("new_kv_ref", f"{shapes['new_kv']}; HBM"),
            ("_out_operand_ref", f"{out}; aliases out_ref"),
            ("_cache_operand_ref", f"{cache}; aliases cache_ref"),
            ("out_ref", f"{out}; HBM"),
            ("cache_ref", f"{cache}; HBM"),
        ]
    return [
        *parameters,
        ("_out_operand_ref", f"{out}; aliases out_ref"),
        ("cache_ref", f"{cache}; HBM"),
        ("out_ref", f"{out}; HBM"),
    ]


def _operands(variant: Variant) -> str:
    """The fields of a kernel's `Operands`, in order."""
    new_kv = "new_kv_ref, " if stages.updates_cache(variant) else ""
    return (
        f"kv_lens_ref, page_indices_ref, cu_q_lens_ref, queries_ref, {new_kv}out_ref, cache_ref"
    )


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
