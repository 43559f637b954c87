"""What an author of templates reads after a mistake: the place, the mistake, and no traceback."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from emit_fixtures import BODY, ONE, TWO
from emit_fixtures import emitted as emitted  # a fixture

from rpagen.emit import bodies, header, mistakes, render, resources
from rpagen.emit.mistakes import EmitError
from rpagen.spec import expand

ROOT = Path(__file__).parent.parent
RENDER = render.render  # before `emitted` puts its own in its place


@pytest.fixture
def template(emitted, monkeypatch, tmp_path):
    """Set the template that every module is rendered from."""
    folder = tmp_path / "templates"
    (folder / "stages").mkdir(parents=True)
    monkeypatch.setattr(resources, "root", lambda: tmp_path)
    monkeypatch.setattr(render, "render", RENDER)
    monkeypatch.setattr(render, "usual_environment", render.make_environment)
    for module in (ONE, TWO):
        monkeypatch.setitem(render.SHARED_MODULES, module, "stages/scores.py.j2")

    def set_template(text: str, **context) -> None:
        (folder / "stages/scores.py.j2").write_text(text)
        monkeypatch.setattr(render, "_shared_context", lambda _: context)

    return set_template


def refusal(emitted) -> str:
    with pytest.raises(EmitError) as caught:
        emitted.generate()
    assert caught.value.exit_status == 2
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "x = 1\ny = {{ varient }}\n",
            "templates/stages/scores.py.j2:2: UndefinedError: 'varient' is undefined\n"
            f"  in {ONE}, line 2 as rendered (and in 1 more)",
        ),
        (
            "x = 1\n{% if x %}\n",
            "templates/stages/scores.py.j2:2: TemplateSyntaxError: Unexpected end of template."
            " Jinja was looking for the following tags: 'elif' or 'else' or 'endif'. The innermost"
            " block that needs to be closed is 'if'.\n"
            f"  in {ONE}, line 1 as rendered (and in 1 more)",
        ),
        (
            "{% for x in range(3) %}\na\n{% endfor %}\n{{ 1 / 0 }}\n",
            "templates/stages/scores.py.j2:4: ZeroDivisionError: division by zero\n"
            f"  in {ONE}, line 4 as rendered (and in 1 more)",
        ),
        (
            "\n{% include 'stages/nowhere.py.j2' %}\n",
            "templates/stages/scores.py.j2:2: there is no template stages/nowhere.py.j2\n"
            f"  in {ONE}, line 2 as rendered (and in 1 more)",
        ),
    ],
)
def test_a_wrong_template_is_named_with_its_line(emitted, template, text, said):
    template(text)
    assert refusal(emitted) == f"nothing was written:\n{said}"
    assert not emitted.root.exists()


def test_a_template_that_is_not_there_is_named(emitted, monkeypatch):
    monkeypatch.setattr(render, "render", RENDER)
    for module in (ONE, TWO):
        monkeypatch.setitem(render.SHARED_MODULES, module, "stages/nowhere.py.j2")
    assert refusal(emitted) == (
        "nothing was written:\n"
        f"{ONE}, line 1 as rendered: there is no template stages/nowhere.py.j2 (and in 1 more)"
    )


def test_a_fault_of_rpagen_itself_is_not_blamed_on_a_template(emitted, monkeypatch):
    def rendered(module, _):
        raise KeyError("no such plan")

    monkeypatch.setattr(render, "render", rendered)
    with pytest.raises(KeyError):
        emitted.generate()


def test_emitted_text_that_is_no_python_is_shown_with_the_lines_around_it(emitted, template):
    template("\n\n\na = 1\nb = {{ value }}\nc = (\nd = 3\ne = 5\n", value=2)
    assert refusal(emitted).splitlines() == [
        "nothing was written:",
        "templates/stages/scores.py.j2:6: '(' was never closed",
        f"  in {ONE}, line 6 as rendered (and in 1 more)",
        "    ",
        "    a = 1",
        "    b = 2",
        "  > c = (",
        "    d = 3",
        "    e = 5",
    ]


def test_a_broken_rule_is_shown_with_its_emitted_line(emitted, template):
    template('"""A module."""\n{% if value %}\nimport   {{ value }}\n{% endif %}\n', value="os")
    assert refusal(emitted).splitlines() == [
        "nothing was written:",
        "templates/stages/scores.py.j2:3: `os` is not used here, nor is it in __all__"
        " [unused-name]",
        f"  in {ONE}:{header.LINES + 3} (and in 1 more)",
        "    import os",
    ]


def test_a_mistake_in_a_stage_is_shown_with_what_the_module_had_by_then(tmp_path, monkeypatch):
    catalogue = expand.load_catalogue(ROOT / "specs")
    (module,) = (each for each in render.modules(catalogue) if each.path.endswith("/rpa.py"))
    rendered = render.render(module, catalogue).splitlines()
    monkeypatch.setattr(resources, "root", lambda: tmp_path)
    monkeypatch.setattr(render, "usual_environment", render.make_environment)
    shutil.copytree(ROOT / "templates", tmp_path / "templates")
    path = tmp_path / "templates/stages/scores/plain.py.j2"
    path.write_text(path.read_text() + "{{ varient }}\n")
    (problem,) = bodies.make_one(module, catalogue).problems
    line = path.read_text().count("\n")
    assert problem.template == f"templates/stages/scores/plain.py.j2:{line}"
    assert problem.said == "UndefinedError: 'varient' is undefined"
    above = int(re.fullmatch(r"rpa_kernels/rpa.py, line (\d+) as rendered", problem.place)[1])
    # In the stage, of as many lines as its template.
    assert 0 < above - rendered.index("def scale_scores(scores, scales_ref):") <= line


def test_many_problems_are_cut(emitted):
    emitted.texts = {
        f"rpa_kernels/m{number}.py": f'"""A module."""\nunused_{number} = 1\n'
        for number in range(mistakes.SHOWN_PROBLEMS + 5)
    }
    lines = refusal(emitted).splitlines()
    assert lines[-1] == "and 5 more"


def test_several_processes_say_what_one_says(tmp_path):
    for name in ("rpagen", "specs", "templates"):
        shutil.copytree(ROOT / name, tmp_path / name)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    path = tmp_path / "templates/module.py.j2"
    path.write_text("import os\n{{ varient }}\n" + path.read_text())

    def generate(jobs: int) -> subprocess.CompletedProcess:
        command = [sys.executable, "-m", "rpagen", "generate", "--jobs", str(jobs)]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)

    alone, together = generate(1), generate(2)
    assert (together.returncode, together.stderr) == (alone.returncode, alone.stderr)
    assert "error: nothing was written:\ntemplates/module.py.j2:2: UndefinedError" in alone.stderr
    assert not (tmp_path / "generated").exists()


def test_a_killed_process_is_an_error(emitted, monkeypatch):
    emitted.texts = {f"rpa_kernels/m{number}.py": BODY.format(number=number) for number in range(9)}
    monkeypatch.setattr(bodies, "_start_worker", _die)
    with pytest.raises(EmitError, match=r"--jobs 1"):
        bodies.make(render.modules(()), (), jobs=2)


def _die(_):
    os._exit(1)
