from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from verl_examples import bundle, render_config

from lever_pipe.intention.verl.launch import launch_files

GOLDEN = Path(__file__).parents[3] / "golden" / "verl"
FAKES = {
    # Prints its arguments and environment where the trainer would log, and answers the import check.
    "python3": """#!/usr/bin/env bash
if [ "$1" = -c ]; then
    case $2 in *import*tensorboard*) exit "${NO_PACKAGES:-0}" ;; *) echo 8123; exit 0 ;; esac
fi
if [ "$1" = -m ]; then
    printf '%s\\n' "$PWD" "$OPENAI_BASE_URL" "$MULTITURN_MODEL_NAME" "$TENSORBOARD_DIR" > "$SEEN.environment"
    printf '%s\\n' "$@" > "$SEEN"
    echo "step:1 - actor/lr:0.000"
    exit "${TRAINER_STATUS:-0}"
fi
""",
    "sbatch": """#!/usr/bin/env bash
printf '%s\\n' "$*|$LAUNCH_FOLDER|$VERL_LOGS" >> "$SEEN.sbatch"
echo "71;cluster"
""",
    "vllm": """#!/usr/bin/env bash
printf '%s\\n' "$@" > "$SEEN.vllm"
printf '%s\\n' "$VLLM_API_KEY" > "$SEEN.key"
exec "$REAL_SLEEP" "${SERVER_SECONDS:-60}"
""",
    "curl": "#!/usr/bin/env bash\nexit 0\n",
    "sleep": '#!/usr/bin/env bash\nexec "$REAL_SLEEP" 0.05\n',
}


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Path]:
    """Return a folder as of a project, with a launch folder, a checkout of UserRL and programs that only take notes."""
    for name, text in launch_files(render_config(arm=bundle(seed=1))).items():
        write(tmp_path / "a launch" / name, text)
    for name, text in FAKES.items():
        write(tmp_path / "bin" / name, text)
        (tmp_path / "bin" / name).chmod(0o755)
    home = tmp_path / "User RL"
    write(home / "examples/sglang_multiturn/config/grpo_multiturn.yaml", "")
    for split in ("train", "test"):
        write(home / f"data/intention_multiturn/{split}.parquet", "")
    (tmp_path / "models/Qwen3-8B").mkdir(parents=True)
    yield tmp_path


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def environment(project: Path, **changed: str) -> dict[str, str]:
    real = subprocess.run(["bash", "-c", "type -P sleep"], capture_output=True, text=True, check=True).stdout.strip()
    own = {
        "PATH": f"{project / 'bin'}:{os.environ['PATH']}",
        "REAL_SLEEP": real,
        "SEEN": str(project / "seen"),
        "USERRL_HOME": str(project / "User RL"),
        "OPENAI_API_KEY": "a-key",
        "OPENAI_BASE_URL": "http://127.0.0.1:1/v1",
        "HOME": str(project),
    }
    return own | changed


def run(project: Path, script: str, **changed: str) -> subprocess.CompletedProcess[str]:
    command = ["bash", str(project / "a launch" / script)]
    return subprocess.run(
        command,
        cwd=project,
        env=environment(project, **changed),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_files_are_the_golden_ones() -> None:
    """A change that is meant: write the rendered text there."""
    assert launch_files(render_config()) == {path.name: path.read_text(encoding="utf-8") for path in GOLDEN.iterdir()}


def test_the_trainer_gets_every_override_as_it_stands(project: Path) -> None:
    done = run(project, "launch.sh")
    assert done.returncode == 0, done.stderr
    seen = (project / "seen").read_text().splitlines()
    overrides = [
        line for line in (project / "a launch/overrides.txt").read_text().splitlines() if not line.startswith("#")
    ]
    home, logs = project / "User RL", project / "logs/verl/bundle/seed-1"
    assert seen == [
        "-m",
        "verl.trainer.main_ppo",
        f"--config-path={home}/examples/sglang_multiturn/config",
        "--config-name=grpo_multiturn",
        *overrides,
        f"actor_rollout_ref.model.path='{project}/models/Qwen3-8B'",
        f"data.train_files='{home}/data/intention_multiturn/train.parquet'",
        f"data.val_files='{home}/data/intention_multiturn/test.parquet'",
        f"actor_rollout_ref.rollout.multi_turn.tool_config_path='{project}/a launch/tool_config.yaml'",
        f"trainer.default_local_dir='{logs}/checkpoints'",
    ]
    variables = (project / "seen.environment").read_text().splitlines()
    assert variables == [str(home), "http://127.0.0.1:1/v1", "Qwen3-32B", f"{logs}/tensorboard"]
    assert (logs / "console.log").read_text() == "step:1 - actor/lr:0.000\n"


def test_an_odd_path_is_data_and_never_code(project: Path) -> None:
    odd = project / "models/a `touch x` ; touch y & (z) * =,{w}"
    odd.mkdir(parents=True)
    done = run(project, "launch.sh", MODEL_FOLDER=str(odd))
    assert done.returncode == 0, done.stderr
    assert f"actor_rollout_ref.model.path='{odd}'" in (project / "seen").read_text().splitlines()
    assert not (project / "x").exists()
    assert not (project / "User RL/y").exists()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"USERRL_HOME": ""}, "USERRL_HOME: must "),
        ({"OPENAI_API_KEY": ""}, "OPENAI_API_KEY: must "),
        ({"MODEL_FOLDER": "nowhere"}, "nowhere; found none. See README.txt."),
        ({"NO_PACKAGES": "1"}, "expected packages verl and tensorboard"),
    ],
)
def test_what_is_missing_is_named_before_anything_runs(project: Path, changed: dict[str, str], message: str) -> None:
    done = run(project, "launch.sh", **changed)
    assert done.returncode != 0
    assert message in done.stderr
    assert not (project / "seen").exists()


def test_two_jobs_are_submitted_the_trainer_after_the_user(project: Path) -> None:
    done = run(project, "submit.sh", OPENAI_BASE_URL="", VERL_LOGS="my logs")
    assert done.returncode == 0, done.stderr
    user, trainer = (project / "seen.sbatch").read_text().splitlines()
    folder, logs = project / "a launch", project / "my logs"
    run_folder = f"{logs}/bundle/seed-1"
    assert user == f"--parsable --output={run_folder}/simulator-%j.log {folder}/simulator.sbatch|{folder}|{logs}"
    assert trainer == (
        f"--dependency=after:71 --output={run_folder}/slurm-%j.log {folder}/launch.sbatch|{folder}|{logs}"
    )


def test_the_user_announces_itself_and_ends_with_the_trainer(project: Path) -> None:
    """The server's job and the trainer's, as SLURM would start them: each a copy of its file, elsewhere."""
    changed = {"OPENAI_BASE_URL": "", "SIMULATOR_MODEL": "models/a user", "LAUNCH_FOLDER": str(project / "a launch")}
    env = environment(project, **changed, SLURM_GPUS_ON_NODE="2")
    for name in ("simulator.sbatch", "launch.sbatch"):
        write(project / "spool" / name, (project / "a launch" / name).read_text())
    user = subprocess.Popen(["bash", str(project / "spool/simulator.sbatch")], cwd=project, env=env)
    try:
        trainer = subprocess.run(
            ["bash", str(project / "spool/launch.sbatch")],
            cwd=project,
            env=env,
            capture_output=True,
            text=True,
            timeout=30,
        )
        assert trainer.returncode == 0, trainer.stderr
        assert user.wait(timeout=20) == 0
    finally:
        user.kill()
    served = (project / "seen.vllm").read_text().splitlines()
    assert served[:4] == ["serve", "models/a user", "--served-model-name", "Qwen3-32B"]
    assert served[served.index("--tensor-parallel-size") + 1] == "2"
    assert "a-key" not in served
    assert (project / "seen.key").read_text() == "a-key\n"
    address = (project / "seen.environment").read_text().splitlines()[1]
    assert address.startswith("http://")
    assert address.endswith(":8123/v1")
    assert not (project / "logs/verl/bundle/seed-1/simulator.url").exists()
